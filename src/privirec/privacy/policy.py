"""What a client insists on, in one place, checked before every answer.

The server proposes, the client decides. Defaults leave out the two computations that give histories
away by themselves: the exact item-item matrix, and a start block with a row per user. They also
leave out sums without secure aggregation, where the server sees what every client sends.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from privirec.errors import FederationError, UsageError
from privirec.secagg.protocol import protocol_names


def _known_protocol(name: str) -> str:
    if name not in protocol_names():
        raise ValueError(f"no aggregator {name!r}; there are {', '.join(protocol_names())}")
    return name


Aggregator = Annotated[str, AfterValidator(_known_protocol)]
"""Name of a protocol that sums."""


FORMER_NAMES = {"most_rounds": "most_sums", "most_of_item_item": "largest_opened_share"}
"""Settings that files of earlier versions call otherwise."""


class PolicyRefusal(FederationError):
    """Something this client does not do, whoever asks."""


@dataclass(frozen=True)
class Terms:
    """What a run plans, as far as a policy cares."""

    clients: int
    """Most clients that can take part."""
    computations: tuple[str, ...]
    """One for each secure sum, in order."""
    bytes_up: int
    bytes_down: int
    corrupt_share: float
    security_bits: int
    aggregator: str
    opened_share: float
    """Numbers that the sums open, the item-item matrix itself aside, per number in that matrix."""


class Policy(BaseModel):
    """A client's own settings. Unknown names are refused: a misspelt limit would be no limit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    smallest_cohort: int = Field(3, ge=2)
    """Fewest clients in a sum."""
    smallest_change: int = Field(3, ge=1)
    """Cohorts of all runs must be equal, or differ so that clients which were always in the same
    sums come in groups of so many. However sums are added and subtracted, what comes out belongs to
    whole groups."""
    computations: tuple[str, ...] = ("item-degrees", "seeded-step", "power-step")
    """Which contributions this client computes."""
    aggregators: tuple[Aggregator, ...] = ("secagg+", "secagg")
    """How its contributions may be summed; under "none" the server sees each of them."""
    largest_opened_share: float = Field(0.5, gt=0)
    """Most numbers that the sums of one run may open, as a share of the numbers in the item-item
    matrix: at 1 the matrix can be solved for, and it gives every history away."""
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
            return cls(**{FORMER_NAMES.get(name, name): value for name, value in found.items()})
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"{path}: {error}") from None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            if first["type"] == "extra_forbidden":
                near = get_close_matches(where, cls.model_fields, 1)
                hint = f"; is {near[0]} meant?" if near else ""
                raise UsageError(f"{path}: there is no setting {where}{hint}") from None
            raise UsageError(f"{path}: {where}: {first['msg']}") from None

    def as_toml(self) -> str:
        """What `load` reads."""
        return "".join(
            f"{name} = {_toml(getattr(self, name))}\n" for name in type(self).model_fields
        )

    # --- before a run -----------------------------------------------------------------------------

    def check_run(self, terms: Terms) -> None:
        """Refuse a run whose plan already goes beyond what this client does."""
        if terms.clients < self.smallest_cohort:
            _refuse(f"{terms.clients} clients", f"smallest_cohort = {self.smallest_cohort}")
        if len(terms.computations) > self.most_sums:
            _refuse(f"{len(terms.computations)} secure sums", f"most_sums = {self.most_sums}")
        self._check_aggregator(terms.aggregator)
        for computation in terms.computations:
            self._check_computation(computation)
        if terms.opened_share > self.largest_opened_share:
            _refuse(
                f"sums with {terms.opened_share:.2f} times the numbers of the item-item matrix (a "
                "lower rank, or fewer rounds, open less)",
                f"largest_opened_share = {self.largest_opened_share}",
            )
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

    def check_cohort(self, now: frozenset[int], before: Sequence[frozenset[int]]) -> None:
        """Refuse a cohort that is too small, or from which, with those of earlier runs, the sum
        over a few clients could be had."""
        if len(now) < self.smallest_cohort:
            _refuse(f"a sum over {len(now)} clients", f"smallest_cohort = {self.smallest_cohort}")
        apart = fewest_apart([*before, now])
        if apart is not None and apart < self.smallest_change:
            _refuse(
                f"a cohort that, with those of earlier runs, would set {apart} clients apart, "
                "whose sum could then be computed",
                f"smallest_change = {self.smallest_change}",
            )

    # --- before every answer ----------------------------------------------------------------------

    def check_answer(
        self, computation: str, aggregator: str, number: int, bytes_up: int, bytes_down: int
    ) -> None:
        """Refuse an answer; bytes count all of the run, this answer included."""
        self._check_aggregator(aggregator)
        self._check_computation(computation)
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

    def _check_computation(self, computation: str) -> None:
        if computation not in self.computations:
            _refuse(f"the computation {computation}", f"computations = {_toml(self.computations)}")


def fewest_apart(cohorts: Sequence[frozenset[int]]) -> int | None:
    """Least number of clients that a linear combination of sums over these cohorts can be about.

    Clients that are in the same cohorts have the same coefficient in every combination, so what a
    combination is about is made of whole groups of them. None: all cohorts are the same.
    """
    different = list(dict.fromkeys(cohorts))
    if len(different) < 2:
        return None
    groups = Counter(
        tuple(client in one for one in different) for client in frozenset().union(*different)
    )
    return min(groups.values())


def allowing(computations: Collection[str], **changes: Any) -> Policy:
    """The default policy with these computations."""
    return Policy(computations=tuple(dict.fromkeys(computations)), **changes)


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(f'"{name}"' for name in value) + "]"
    return str(value)


def _refuse(asked: str, setting: str) -> None:
    raise PolicyRefusal(f"asked for {asked}; this client's policy says {setting}")
