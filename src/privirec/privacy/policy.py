"""A client's policy, checked before every answer.

The server proposes, the client decides. By default a client takes part in sums that noise protects,
up to a budget, and in no exact sum. No exact sum is proven safe, so a client that accepts one must
name it under `computations`. The defaults also exclude sums without secure aggregation, in which
the server sees every client's contribution.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from privirec.errors import UsageError, is_meant
from privirec.federated.contributions import Aim
from privirec.federated.dp.gaussian import DEFAULT_DELTA, LARGEST_EPSILON, LEAST_EPSILON
from privirec.privacy.accountant import Limit
from privirec.privacy.cohorts import Demands, Rule, refuse
from privirec.secagg.parameters import ServerModel
from privirec.secagg.registry import aggregator_names, protocol


def _known_protocol(name: str) -> str:
    if name not in aggregator_names():
        raise ValueError(f"no aggregator {name!r}; there are {', '.join(aggregator_names())}")
    return name


Aggregator = Annotated[str, AfterValidator(_known_protocol)]
"""Name of an aggregation protocol."""


FORMER_NAMES = {"most_rounds": "most_sums", "most_of_item_item": "largest_opened_share"}
"""Former names of settings, which files of earlier versions use."""


YEAR, MONTH = timedelta(days=365), timedelta(days=30)
FEW_ITEMS = 40
"""Catalogue size below which honest blocks may lie on single items; see `check_aim`."""


@dataclass(frozen=True)
class Terms:
    """The parts of a run's plan that a policy checks."""

    clients: int
    """Largest number of clients with people that can take part."""
    exact: tuple[str, ...]
    """Computations without protecting noise, in order."""
    sums: int
    bytes_up: int
    bytes_down: int
    corrupt_share: float
    security_bits: int
    aggregator: str
    opened_share: float
    """Numbers that the sums reveal, relative to the size of the item-item matrix.

    The item-item matrix itself does not count. The share assumes that every item is in use, so it
    is a lower bound.
    """
    server: ServerModel = ServerModel.SEMI_HONEST
    """Server behaviour that the masks withstand."""


class Policy(BaseModel):
    """Settings of a client.

    Unknown names are refused, since a misspelt limit would have no effect.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    takes_part: bool = True
    """If false, this client starts no run and leaves the current one.

    It keeps recommending from the model that it has.
    """
    smallest_cohort: int = Field(3, ge=2)
    """Smallest number of clients in a sum; clients without people do not count."""
    fewest_other_people: int = Field(10, ge=0)
    """Smallest number of people in a sum besides this client's own, according to the other clients'
    pledges.

    The most populous clients that may be corrupt (`corrupt_share` of the roster) do not count.
    """
    smallest_change: int = Field(10, ge=1)
    """Smallest number of people that any combination of sums of all runs may isolate, by addition
    and subtraction.

    `privacy.cohorts` explains why this holds. At 1, this client waives the protection from now on.
    """
    computations: tuple[str, ...] = ()
    """Exact sums that this client accepts; sums protected by noise need not be named."""
    delta: float = Field(DEFAULT_DELTA, gt=0, lt=1)
    """Probability with which the epsilon limits below may fail."""
    most_epsilon: float = Field(20.0, ge=LEAST_EPSILON, le=LARGEST_EPSILON)
    """Largest epsilon of all noisy sums together, over the lifetime of this client."""
    most_epsilon_per_year: float = Field(9.0, ge=LEAST_EPSILON, le=LARGEST_EPSILON)
    """Largest epsilon of the noisy sums in any 365 consecutive days."""
    tells_room: bool = True
    """If true, a refusal of a run that costs too much tells the server how much is left, and when
    room returns.

    Both follow from the runs that this client was in, also with other servers.
    """
    most_validations_per_month: int = Field(4, ge=0)
    """Most sums of validation metrics in any 30 days.

    A dishonest server can use them to ask which items people have, a few questions per candidate.
    """
    most_roster_changes_per_month: int = Field(1000, ge=0)
    """Most changes of the roster in any 30 days that this client accepts without asking.

    At 0 it asks its owner each time. It always asks before a new key of the server that the old one
    did not sign, and refuses such a key of a client.
    """
    aggregators: tuple[Aggregator, ...] = ("secagg+", "secagg")
    """Accepted aggregation protocols; with "none" the server sees each contribution."""
    largest_opened_share: float = Field(0.5, gt=0)
    """Most numbers that the sums of *all* runs may reveal, relative to the item-item matrix of the
    items in use.

    At 1 the matrix can be solved for, and gives every history away.
    """
    largest_item_share: float = Field(0.25, gt=0, le=1)
    """Largest share of a block's column that may lie on one item; see `check_aim`."""
    largest_item_leverage: float = Field(0.95, gt=0, le=1)
    """Largest share of all columns of a block together that may lie on one item; see
    `check_aim`."""
    most_sums: int = Field(16, ge=1)
    """Most secure sums in one run."""
    most_bytes_up: int = Field(1_000_000_000, ge=1)
    most_bytes_down: int = Field(1_000_000_000, ge=1)
    corrupt_share: float = Field(0.05, ge=0, lt=1)
    """Share of corrupt clients that the masks must withstand."""
    largest_dropped_share: float = Field(0.35, ge=0, lt=1)
    """Largest share of clients that may drop out.

    The larger it is, the fewer shares suffice to reconstruct a secret.
    """
    security_bits: int = Field(40, ge=20)
    server: ServerModel = ServerModel.ACTIVE
    """Assumed behaviour of the server.

    "active": it may tell each client anything. "semi-honest": it follows the protocol. The setting
    affects secagg+ and secagg.
    """
    days_between_changes: int = Field(7, ge=0, le=366)
    """Length of a calendar period in days; 0: no calendar.

    Exact sums show what changed between two runs. All runs of a period therefore use the same
    history. Additions wait for the next period, and after a deletion the client sits out until
    then.
    """

    @classmethod
    def load(cls, path: Path) -> Policy:
        """Return the policy in a TOML file, or the default policy if the file does not exist."""
        if not path.exists():
            return cls()
        try:
            found = tomllib.loads(path.read_text(encoding="utf-8"))
            for former, name in FORMER_NAMES.items():
                if former in found and name in found:
                    raise UsageError(f"{path}: {former} is the former name of {name}: keep one")
            return cls(**{FORMER_NAMES.get(name, name): value for name, value in found.items()})
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"{path}: {error}") from None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            if first["type"] == "extra_forbidden":
                hint = is_meant(where, cls.model_fields)
                raise UsageError(f"{path}: there is no setting {where}{hint}") from None
            raise UsageError(f"{path}: {where}: {first['msg']}") from None

    def as_toml(self) -> str:
        """Return the policy in the format that `load` reads."""
        return "".join(
            f"{name} = {_toml(getattr(self, name))}\n" for name in type(self).model_fields
        )

    # --- before a run -----------------------------------------------------------------------------

    def check_takes_part(self) -> None:
        """Refuse everything while the owner has switched participation off."""
        if not self.takes_part:
            _refuse("a part in a run", f"takes_part = {_toml(self.takes_part)}")

    def check_run(self, terms: Terms, opened_before: float = 0.0) -> None:
        """Refuse a run whose plan exceeds the limits of this client.

        `opened_before` is the share of the item-item matrix that earlier sums have revealed.
        """
        if terms.clients < self.smallest_cohort:
            refuse(
                Rule.PEOPLE,
                f"a sum over {terms.clients} clients with people; this client's policy says "
                f"smallest_cohort = {self.smallest_cohort}",
            )
        if terms.sums > self.most_sums:
            _refuse(f"{terms.sums} secure sums", f"most_sums = {self.most_sums}")
        self._check_aggregator(terms.aggregator)
        self.check_exact(terms.exact)
        self.check_opened(opened_before + terms.opened_share)
        self.check_traffic(terms.bytes_up, terms.bytes_down)
        if terms.corrupt_share < self.corrupt_share:
            _refuse(
                f"masks that withstand {terms.corrupt_share:.0%} corrupt clients",
                f"corrupt_share = {self.corrupt_share}",
            )
        if terms.security_bits < self.security_bits:
            _refuse(
                f"{terms.security_bits} bits of security", f"security_bits = {self.security_bits}"
            )
        if protocol(terms.aggregator).active_schedule and not terms.server.at_least(self.server):
            _refuse(f"masks that withstand a {terms.server} server", f'server = "{self.server}"')

    @property
    def limits(self) -> tuple[Limit, Limit]:
        """Limits of this client's privacy budget."""
        return (
            Limit("most_epsilon", self.most_epsilon, self.delta),
            Limit("most_epsilon_per_year", self.most_epsilon_per_year, self.delta, YEAR),
        )

    @property
    def demands(self) -> Demands:
        """This client's demands on every sum that it is in, for its pledge."""
        return Demands(self.smallest_cohort, self.fewest_other_people, self.smallest_change)

    def check_opened(self, share: float) -> None:
        """Refuse a sum if the share of the item-item matrix revealed so far would become too large.

        `share` covers the lifetime of this client up to the end of the run.
        """
        if share > self.largest_opened_share:
            refuse(
                Rule.OPENED,
                f"sums that, with those of earlier runs, open {share:.2f} times the numbers of the "
                "item-item matrix between the items in use (a lower rank, or fewer rounds, open "
                "less; only sums with noise lift this); this client's policy says "
                f"largest_opened_share = {self.largest_opened_share}",
            )

    def check_aim(self, aim: Aim) -> None:
        """Refuse a block that is aimed at an item.

        Honest blocks spread over many items, unless the catalogue is small or the number of columns
        is close to the number of items. The limits are wider in these cases. `benchmarks/blocks.py`
        measures honest blocks.
        """
        room = FEW_ITEMS / max(aim.items, 1)
        wide = 2 * aim.columns / max(aim.items, 1)
        for what, found, setting, limit in (
            ("a column", aim.share, "largest_item_share", max(self.largest_item_share, room)),
            (
                "all columns",
                aim.leverage,
                "largest_item_leverage",
                max(self.largest_item_leverage, room, wide),
            ),
        ):
            if found > min(limit, 1.0) + 1e-6:
                refuse(
                    Rule.AIMED,
                    f"a block of which one item has {found:.2f} of {what}: it is aimed at single "
                    f"items; this client's policy says {setting} = {getattr(self, setting)}",
                )

    # --- before every answer ----------------------------------------------------------------------

    def check_answer(self, aggregator: str, number: int, bytes_up: int, bytes_down: int) -> None:
        """Refuse an answer that exceeds a limit; bytes count the whole run, including this
        answer."""
        self._check_aggregator(aggregator)
        if number > self.most_sums:
            _refuse(f"secure sum {number}", f"most_sums = {self.most_sums}")
        self.check_traffic(bytes_up, bytes_down)

    def check_traffic(self, bytes_up: int, bytes_down: int) -> None:
        if bytes_up > self.most_bytes_up:
            _refuse(f"{bytes_up} bytes up", f"most_bytes_up = {self.most_bytes_up}")
        if bytes_down > self.most_bytes_down:
            _refuse(f"{bytes_down} bytes down", f"most_bytes_down = {self.most_bytes_down}")

    def _check_aggregator(self, aggregator: str) -> None:
        if aggregator not in self.aggregators:
            _refuse(f"the aggregator {aggregator}", f"aggregators = {_toml(self.aggregators)}")

    def check_exact(self, asked: tuple[str, ...]) -> None:
        """Refuse exact sums that the policy does not name."""
        for computation in asked:
            if computation not in self.computations:
                line = f"computations = {_toml(tuple(dict.fromkeys(self.computations + asked)))}"
                _refuse(
                    f"the computation {computation}",
                    f"computations = {_toml(self.computations)}, and exact sums are not proven "
                    f"safe; who wants to take part all the same puts {line} into policy.toml",
                )


def allowing(computations: Collection[str], **changes: Any) -> Policy:
    """Return the default policy with these exact computations allowed."""
    return Policy(computations=tuple(dict.fromkeys(computations)), **changes)


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(f'"{name}"' for name in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def _refuse(asked: str, setting: str) -> None:
    refuse(Rule.POLICY, f"{asked}; this client's policy says {setting}")
