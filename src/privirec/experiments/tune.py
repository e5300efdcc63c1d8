"""Tuning of `spectral` for a data set and a budget of bytes, on a validation split alone.

A share of each person's train items is held out; the test split is not used. For each number of
rounds and ring width, the columns follow from the budget. On the resulting space, a hill climb from
a default start changes rank, exponents and response, one at a time. At the best point, the response
is replaced by a polynomial, whose shape is climbed in the same way. Every measured point is a line
of a trace, so that an interrupted command resumes and its choice can be verified.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.polynomial import polynomial

from privirec import threads as threading
from privirec.data.interactions import Dataset
from privirec.data.splits import validation_split
from privirec.errors import DataError, UsageError
from privirec.evaluation import evaluate
from privirec.experiments.cost import largest
from privirec.experiments.measured import MeasuredRows
from privirec.federated.programs import SpectralSettings, program_of
from privirec.federated.programs.spectral import PAIRS, SpectralProgram, eigenpairs
from privirec.filters.components import Components
from privirec.filters.krylov import KrylovSpace
from privirec.filters.operators import LowRankOperator
from privirec.models.spectral import Spectral, SpectralConfig
from privirec.privacy.ledger import Ledger
from privirec.progress import QUIET, Phases
from privirec.runtime.execute import execute_steps
from privirec.runtime.local.simulation import Simulation
from privirec.runtime.spec import RunSpec
from privirec.version import __version__

HELD_OUT = 0.2
MOST_DOWN = 1.5
"""Largest ratio of bytes down to bytes up; the released basis counts as bytes down."""
START = SpectralConfig(history_exponent=0.4, item_exponent=0.4)
STEPS = (0.1, 0.05)
"""Step sizes of the exponents, the coarse one first."""
HEAT = (1.0, 2.0, 4.0)
NODES = (0.0, 1 / 3, 2 / 3, 1.0)
"""Eigenvalues at which heights are given; all eigenvalues are between 0 and 1."""
FIXED_NODE = 1
"""Index of the node whose height is fixed; most eigenvalues are near this node."""
POLYNOMIAL_STEPS = (0.2, 0.1)
"""Step sizes of the heights, the coarse one first; the fixed height is about one."""
COEFFICIENT_DIGITS = 4
_SEEN = np.linspace(0.05, 1.0, 39)
SETTINGS = ("columns", "ring_bits", "pairs", "config")
"""Names of the fields that identify a point among those of a search."""


@dataclass(frozen=True)
class Shape:
    """Columns of each round and ring width: what the clients compute, except for the rank."""

    columns: tuple[int, ...]
    ring_bits: int

    def settings(self, rank: int = 1, **more: Any) -> SpectralSettings:
        return SpectralSettings(columns=self.columns, ring_bits=self.ring_bits, rank=rank, **more)

    def bytes(self, users: int, items: int, rank: int = 1) -> tuple[int, int]:
        """Return the bytes up and down per client."""
        ledger = Ledger.planned(program_of(self.settings(rank), users, items).outline())
        return ledger.bytes_up, ledger.bytes_down


AnyShape = TypeVar("AnyShape", bound=Shape)


def largest_shape(
    kind: type[AnyShape], rounds: int, ring_bits: int, budget: int, users: int, items: int
) -> AnyShape | None:
    """Return the shape with the most columns, equal in all rounds, that fits the budget."""

    def fits(columns: int) -> bool:
        return kind((columns,) * rounds, ring_bits).bytes(users, items)[0] <= budget

    columns = largest(fits, items // rounds)
    return kind((columns,) * rounds, ring_bits) if columns else None


def shapes_within(
    kind: type[AnyShape],
    rounds: Sequence[int],
    ring_bits: Sequence[int],
    budget: int,
    sizes: tuple[int, int],
) -> list[AnyShape]:
    """Return the largest shape for each number of rounds and ring width that fits at all."""
    found = [
        largest_shape(kind, each, bits, budget, *sizes) for bits in ring_bits for each in rounds
    ]
    possible = [shape for shape in found if shape is not None]
    if not possible:
        raise UsageError(f"{budget:,} bytes are too few for a single column")
    return possible


def largest_rank(shape: Shape, users: int, items: int) -> int:
    """Return the largest rank whose release keeps bytes down within MOST_DOWN times bytes up."""

    def fits(rank: int) -> bool:
        up, down = shape.bytes(users, items, rank)
        return down <= MOST_DOWN * up

    return max(1, largest(fits, min(sum(shape.columns), items)))


@dataclass
class Tuning:
    """A search for the best settings, with a trace that keeps finished points."""

    dataset: Dataset
    budget: int
    """Upload budget per client, in bytes."""
    trace: Path
    rounds: Sequence[int] = (4, 6, 8)
    ring_bits: Sequence[int] = (12, 16)
    users: int = 3000
    """Largest number of users for whom lists are ranked; sums are always over all users."""
    seed: int = 0
    threads: int | None = None
    shapes: Sequence[Shape] = ()
    """Shapes to try; if empty, those that fill the budget."""

    @property
    def points(self) -> list[dict[str, Any]]:
        """All measured points, including those of earlier runs."""
        return self._measurements.rows_with(self._about)

    def run(self, phases: Phases = QUIET) -> dict[str, Any]:
        """Measure the points that were not measured yet, and return the best point."""
        with threading.limit(self.threads):
            found = [
                self._climb(_Space(self, shape), pairs, phases)
                for shape in self.shapes or self._filling()
                for pairs in PAIRS
            ]
            best = max(found, key=_ndcg)
            return max(best, self._climb_polynomials(best, phases), key=_ndcg)

    def _climb_polynomials(self, best: dict[str, Any], phases: Phases) -> dict[str, Any]:
        """Climb from the polynomial closest to a point's response, and keep all other settings."""
        space = _Space(self, Shape(tuple(best["columns"]), best["ring_bits"]))
        start = as_polynomial(SpectralConfig(**best["config"]))
        return self._climbed(
            *(space, best["pairs"], start, phases),
            *(POLYNOMIAL_STEPS, lambda here, step: list(near_polynomials(here, step))),
        )

    def _filling(self) -> list[Shape]:
        sizes = self._train.n_users, self._train.n_items
        return shapes_within(Shape, self.rounds, self.ring_bits, self.budget, sizes)

    @cached_property
    def split(self) -> Dataset:
        """Data set of the reduced train split, and of the held-out items as its test split."""
        train, held_out = validation_split(self.dataset.train, share=HELD_OUT, seed=self.seed)
        tested = np.flatnonzero(held_out.user_degrees)
        if not len(tested):
            raise DataError(f"{self.dataset.name}: nobody has two items to hold one of them out")
        chosen = np.random.Generator(np.random.Philox(self.seed)).permutation(tested)[: self.users]
        rows = np.repeat(np.arange(held_out.n_users), held_out.user_degrees)
        return Dataset(self.dataset.name, train, held_out.select(np.isin(rows, chosen)))

    @property
    def _train(self) -> Any:
        return self.split.train

    @cached_property
    def _measurements(self) -> MeasuredRows:
        return MeasuredRows(self.trace, "tune", (*self._about, *SETTINGS))

    @cached_property
    def _about(self) -> dict[str, Any]:
        """Fields that all points of this search share: data, number of users, seed, version."""
        return {
            "dataset": self.dataset.name,
            "fingerprint": self._train.fingerprint()[:16],
            "users": int(np.count_nonzero(self.split.test.user_degrees)),
            "seed": self.seed,
            "version": __version__,
        }

    def _climb(self, space: _Space, pairs: str, phases: Phases) -> dict[str, Any]:
        """Climb from the default start until no single change is better."""
        most = largest_rank(space.shape, self._train.n_users, self._train.n_items)
        config = START.model_copy(update={"rank": max(1, most // 2)})
        return self._climbed(
            *(space, pairs, config, phases),
            *(STEPS, lambda here, step: neighbours(here, step, most)),
        )

    def _climbed(
        self,
        space: _Space,
        pairs: str,
        start: SpectralConfig,
        phases: Phases,
        steps: Sequence[float],
        near: Callable[[SpectralConfig, float], list[SpectralConfig]],
    ) -> dict[str, Any]:
        best = self._measured(space, pairs, start, phases)
        for step in steps:
            while True:
                here = SpectralConfig(**best["config"])
                found = [self._measured(space, pairs, one, phases) for one in near(here, step)]
                better = max(found, key=_ndcg)
                if _ndcg(better) <= _ndcg(best):
                    break
                best = better
        return best

    def _measured(
        self, space: _Space, pairs: str, config: SpectralConfig, phases: Phases
    ) -> dict[str, Any]:
        shape, plain = space.shape, json.loads(config.model_dump_json())
        wanted = self._about | {
            "columns": list(shape.columns),
            "ring_bits": shape.ring_bits,
            "pairs": pairs,
            "config": plain,
        }
        if (point := self._measurements.find(wanted)) is not None:
            return point
        phases(f"spectral: {len(self.points)} points measured")(0, 1)
        metrics = evaluate(Spectral(config).use(space.components(pairs)), self.split)
        up, down = shape.bytes(self._train.n_users, self._train.n_items, config.rank)
        cost = {"bytes_up_per_client": up, "bytes_down_per_client": down}
        return self._measurements.add(wanted | metrics.as_row() | cost)


class _Space:
    """The Krylov space of one shape, computed when the first point needs it."""

    def __init__(self, tuning: Tuning, shape: Shape) -> None:
        self.shape = shape
        self._tuning = tuning
        self._solved: tuple[str, Components] | None = None

    @cached_property
    def _gathered(self) -> tuple[KrylovSpace, Any]:
        train = self._tuning._train
        program = program_of(
            self.shape.settings(seed=self._tuning.seed), train.n_users, train.n_items
        )
        if not isinstance(program, SpectralProgram):
            raise AssertionError("the settings are those of spectral")
        return execute_steps(program.gathered(), Simulation(train)), train.item_degrees

    def components(self, pairs: str) -> Components:
        if self._solved is None or self._solved[0] != pairs:
            space, degrees = self._gathered
            train = self._tuning._train
            most = largest_rank(self.shape, train.n_users, train.n_items)
            values, basis = eigenpairs(space, pairs, most)
            made = Components(degrees, LowRankOperator(basis, values), basis)
            self._solved = pairs, made
        return self._solved[1]


def _ndcg(point: dict[str, Any]) -> float:
    return float(point["ndcg@20"])


def neighbours(config: SpectralConfig, step: float, most: int) -> list[SpectralConfig]:
    """Return the settings that differ from `config` in one respect."""
    changes: list[dict[str, Any]] = []
    for name in ("history_exponent", "item_exponent"):
        here = getattr(config, name)
        changes += [{name: round(here + sign * step, 3)} for sign in (1, -1)]
    changes += [{"rank": min(most, round(config.rank * 1.25))}]
    changes += [{"rank": max(1, round(config.rank / 1.25))}]
    power = config.power if config.response == "power" else 0.0
    changes.append({"response": "power", "power": round(power + 2 * step, 3)})
    if power > 2 * step:
        changes.append({"response": "power", "power": round(power - 2 * step, 3)})
    elif config.response != "ideal":
        changes.append({"response": "ideal", "power": 1.0})
    changes += [{"response": "heat", "time": time} for time in HEAT]
    near = [config.model_copy(update=change) for change in changes]
    return [one for one in near if one != config and abs(one.history_exponent) <= 1]


# --- polynomial responses -------------------------------------------------------------------------
#
# The heights at four points determine a polynomial of degree three. A change of one height mainly
# changes the shape near that point, whereas a change of one coefficient changes it everywhere.
# Rankings do not depend on a common factor of the heights, so one height is fixed.


def as_polynomial(config: SpectralConfig) -> SpectralConfig:
    """Return the filter with the closest polynomial, scaled to height one at the fixed node."""
    fitted = polynomial.polyfit(_SEEN, config.responses(_SEEN), len(NODES) - 1)
    heights = polynomial.polyval(np.array(NODES), fitted)
    return _with_heights(config, heights / heights[FIXED_NODE])


def near_polynomials(config: SpectralConfig, step: float) -> Iterator[SpectralConfig]:
    """Yield the polynomials that differ from this one in one height."""
    heights = polynomial.polyval(np.array(NODES), np.array(config.coefficients))
    for node in range(len(NODES)):
        if node == FIXED_NODE:
            continue
        for change in (step, -step):
            moved = heights.copy()
            moved[node] += change
            yield _with_heights(config, moved)


def _with_heights(config: SpectralConfig, heights: np.ndarray) -> SpectralConfig:
    fitted = polynomial.polyfit(np.array(NODES), heights, len(NODES) - 1)
    rounded = tuple(float(each) for each in np.round(fitted, COEFFICIENT_DIGITS))
    return config.model_copy(update={"response": "polynomial", "coefficients": rounded})


# --- output --------------------------------------------------------------------------------------


def as_spec(point: dict[str, Any]) -> RunSpec:
    """Return the run of a point, which `privirec run --settings` reads."""
    program = {key: point[key] for key in ("columns", "ring_bits", "pairs")}
    config = SpectralConfig(**point["config"]).model_dump()
    return RunSpec.of(SpectralProgram.name, model=Spectral.name, config=config, **program)
