"""What a client insists on, in one place, checked before every answer.

The server proposes, the client decides. By default a client is in sums that noise protects, up to a
budget, and in no exact sum: none is proven safe, so whoever wants one names it under
`computations`. The defaults also leave out sums without secure aggregation, where the server sees
what every client sends.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from privirec.dp.gaussian import LARGEST_EPSILON, LEAST_EPSILON
from privirec.errors import UsageError, is_meant
from privirec.federated.contributions import Aim
from privirec.federated.programs.protected import DEFAULT_DELTA
from privirec.privacy.cohorts import Demands
from privirec.privacy.refusal import Rule, refuse
from privirec.secagg.parameters import ServerModel
from privirec.secagg.protocol import protocol, protocol_names


def _known_protocol(name: str) -> str:
    if name not in protocol_names():
        raise ValueError(f"no aggregator {name!r}; there are {', '.join(protocol_names())}")
    return name


Aggregator = Annotated[str, AfterValidator(_known_protocol)]
"""Name of a protocol that sums."""


FORMER_NAMES = {"most_rounds": "most_sums", "most_of_item_item": "largest_opened_share"}
"""Settings that files of earlier versions call otherwise."""


FEW_ITEMS = 40
"""In a catalogue of so few items, honest blocks lie on single ones; see `check_aim`."""


@dataclass(frozen=True)
class Terms:
    """What a run plans, as far as a policy cares."""

    clients: int
    """Most clients with people that can take part."""
    exact: tuple[str, ...]
    """Computations without noise that would protect, in order."""
    sums: int
    bytes_up: int
    bytes_down: int
    corrupt_share: float
    security_bits: int
    aggregator: str
    opened_share: float
    """Numbers that the sums open, the item-item matrix itself aside, per number in that matrix, if
    every item is in use: the least that it can be."""
    server: ServerModel = ServerModel.SEMI_HONEST
    """What the masks withstand."""


class Policy(BaseModel):
    """A client's own settings. Unknown names are refused: a misspelt limit would be no limit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    takes_part: bool = True
    """Whether this client is in runs at all. Off, it begins none and leaves the one that it is in;
    it goes on recommending from the model that it has."""
    smallest_cohort: int = Field(3, ge=2)
    """Fewest clients in a sum; one without people does not count."""
    fewest_other_people: int = Field(10, ge=0)
    """Fewest people in a sum beside this client's own, by what the other clients have pledged, and
    without the most populous of them that may be corrupt (`corrupt_share` of the roster)."""
    smallest_change: int = Field(10, ge=1)
    """Fewest people that the sums of all runs, however they are added and subtracted, may be about
    (`privacy.cohorts` says why that holds). At 1 this client asks for nothing from now on."""
    computations: tuple[str, ...] = ()
    """Which exact sums this client is ready to be in; those that noise protects need no name."""
    delta: float = Field(DEFAULT_DELTA, gt=0, lt=1)
    """The chance with which what `epsilon` says may fail, for all that follow."""
    most_epsilon: float = Field(20.0, ge=LEAST_EPSILON, le=LARGEST_EPSILON)
    """Most that all sums with noise, in the life of this client, may tell about a person."""
    most_epsilon_per_period: float = Field(8.0, ge=LEAST_EPSILON, le=LARGEST_EPSILON)
    """The same for any `days_per_period` days that follow each other."""
    days_per_period: int = Field(30, ge=1, le=3660)
    most_validations_per_period: int = Field(4, ge=0)
    """Most sums of validation metrics in any `days_per_period` days. A server that lies puts its
    questions about what people have into them, a few for each candidate."""
    aggregators: tuple[Aggregator, ...] = ("secagg+", "secagg")
    """How its contributions may be summed; under "none" the server sees each of them."""
    largest_opened_share: float = Field(0.5, gt=0)
    """Most numbers that the sums of *all* runs may open, as a share of the numbers in the item-item
    matrix of the items in use: at 1 the matrix can be solved for, and gives every history away."""
    largest_item_share: float = Field(0.25, gt=0, le=1)
    """Most of a column of a block that may lie on one item; see `check_aim`."""
    largest_item_leverage: float = Field(0.95, gt=0, le=1)
    """Most of all columns of a block together that may lie on one item; see `check_aim`."""
    most_sums: int = Field(16, ge=1)
    """Most secure sums in one run."""
    most_bytes_up: int = Field(1_000_000_000, ge=1)
    most_bytes_down: int = Field(1_000_000_000, ge=1)
    corrupt_share: float = Field(0.05, ge=0, lt=1)
    """Share of corrupt clients that the masks must withstand."""
    largest_dropped_share: float = Field(0.35, ge=0, lt=1)
    """Share of clients that may drop out, at most: the larger it is, the fewer shares open a
    secret."""
    security_bits: int = Field(40, ge=20)
    server: ServerModel = ServerModel.ACTIVE
    """What the server is taken for: "active", one that may tell each client what it likes, or
    "semi-honest", one that keeps to the protocol. It makes a difference to secagg+ and secagg."""
    days_between_changes: int = Field(7, ge=0, le=366)
    """Exact sums show what changed between two runs. So all runs of a calendar period of so many
    days use one history: additions wait for the next one, and after forgetting the client sits out
    until then. 0: no calendar."""

    @classmethod
    def load(cls, path: Path) -> Policy:
        """From a TOML file; without one, the defaults."""
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
        """What `load` reads."""
        return "".join(
            f"{name} = {_toml(getattr(self, name))}\n" for name in type(self).model_fields
        )

    # --- before a run -----------------------------------------------------------------------------

    def check_takes_part(self) -> None:
        """Refuse everything while the owner has switched taking part off."""
        if not self.takes_part:
            _refuse("a part in a run", f"takes_part = {_toml(self.takes_part)}")

    def check_run(self, terms: Terms, opened_before: float = 0.0) -> None:
        """Refuse a run whose plan already goes beyond what this client does. `opened_before`: the
        share of the item-item matrix that earlier sums have opened."""
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
    def demands(self) -> Demands:
        """What this client asks of every sum that it is in, for its pledge."""
        return Demands(self.smallest_cohort, self.fewest_other_people, self.smallest_change)

    def check_opened(self, share: float) -> None:
        """Refuse a sum with which so large a share of the item-item matrix would have been opened
        in the life of this client, to the end of the run."""
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

        Honest blocks lie on many items, unless there are few, or nearly as many columns as items
        are asked for: then the limits are wider. `benchmarks/blocks.py` measures them.
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
        """Refuse an answer; bytes count all of the run, this answer included."""
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
        """Refuse exact sums that are not named."""
        for computation in asked:
            if computation not in self.computations:
                line = f"computations = {_toml(tuple(dict.fromkeys(self.computations + asked)))}"
                _refuse(
                    f"the computation {computation}",
                    f"computations = {_toml(self.computations)}, and exact sums are not proven "
                    f"safe; who wants to take part all the same puts {line} into policy.toml",
                )


def allowing(computations: Collection[str], **changes: Any) -> Policy:
    """The default policy with these computations."""
    return Policy(computations=tuple(dict.fromkeys(computations)), **changes)


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(f'"{name}"' for name in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def _refuse(asked: str, setting: str) -> None:
    refuse(Rule.POLICY, f"{asked}; this client's policy says {setting}")
