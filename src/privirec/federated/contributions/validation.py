"""Validation with the clients: ranking metrics of several candidates on held-out items.

Clients keep some of each user's items out of all sums of the run (`Histories.held_out`). At the end
of the run they receive S and its eigenvalues, as a model of `spectral` keeps them. They rank items
on the device with each candidate, and send NDCG@20 and Recall@20 on the held-out items, in fixed
point. Only means over the cohort are revealed.

Candidates are part of the plan, so all clients agree to the same ones before any sum is requested.
Their settings are whole hundredths, so that no two candidates differ by so little that only one
person's list changes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, Self, get_args

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from privirec.compiled import Later
from privirec.errors import FederationError
from privirec.federated.contributions.base import (
    Aim,
    ClientContext,
    Contribution,
    Histories,
    Integers,
    PlannedSum,
    SumShape,
)
from privirec.federated.contributions.power_step import PowerStep
from privirec.federated.contributions.scaled_step import SKEW, block_bytes
from privirec.federated.fixed_point import FixedPoint, packed_bytes
from privirec.federated.randomness import NO_RANDOMNESS, ClientStream, RandomStream
from privirec.filters.operators import LARGEST_BYTE, Float32, history_coordinates
from privirec.filters.parts import Parts
from privirec.filters.spectral import KeptBasis, response

ranking = Later("privirec.evaluation")

TOP = 20
"""Length of a ranked list."""
FRACTION_BITS = 20
"""Fraction bits of one person's metric; rounding changes a mean by at most 2^-21."""
MOST_CANDIDATES = 128
FLOAT_BYTES = 4
INFINITY = 0x7F800000
"""Bits of float32 infinity; smaller non-negative bit patterns are finite numbers."""
ONE = 0x3F800000
"""Bits of 1 as float32."""
COORDINATE_BITS = 24
"""Bits of a history's coordinates."""
SCORES_AT_ONCE = 1 << 23
"""Number of scores computed at once, in double precision; a device holds them in addition to the
vectors."""
_HUNDREDTHS = 100
_ROWS = 4096

ResponseKind = Literal["ideal", "power", "heat"]


class Candidate(BaseModel):
    """Settings of the model `spectral`, under the names that the model uses."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: int = Field(ge=1, lt=1 << 32)
    history_exponent: float = Field(ge=-1, le=2)
    item_exponent: float = Field(ge=-1, le=2)
    response: ResponseKind = "ideal"
    power: float = Field(1.0, ge=0, le=4)
    time: float = Field(1.0, ge=0, le=50)

    _FORMAT: ClassVar[struct.Struct] = struct.Struct(">IhhBHH")

    @model_validator(mode="after")
    def _check(self) -> Self:
        for number in (self.history_exponent, self.item_exponent, self.power, self.time):
            if round(number * _HUNDREDTHS) / _HUNDREDTHS != number:
                raise ValueError(f"{number!r} is not in whole hundredths")
        for kind, number in (("power", self.power), ("heat", self.time)):
            if self.response != kind and number != 1.0:
                raise ValueError(f"a parameter of {kind} for the response {self.response}")
        return self

    def pack(self) -> bytes:
        numbers = (self.history_exponent, self.item_exponent, self.power, self.time)
        a, b, power, time = (round(number * _HUNDREDTHS) for number in numbers)
        kind = get_args(ResponseKind).index(self.response)
        return self._FORMAT.pack(self.rank, a, b, kind, power, time)

    @classmethod
    def unpack_all(cls, packed: bytes) -> tuple[Self, ...]:
        """Return the concatenated candidates; refuse anything that `pack` does not write, and too
        many."""
        size = cls._FORMAT.size
        if not 0 < len(packed) <= MOST_CANDIDATES * size or len(packed) % size:
            raise FederationError(
                f"{len(packed) / size:g} candidates: between 1 and {MOST_CANDIDATES} are allowed"
            )
        found = []
        for rank, a, b, kind, power, time in cls._FORMAT.iter_unpack(packed):
            try:
                found.append(
                    cls(
                        rank=rank,
                        history_exponent=a / _HUNDREDTHS,
                        item_exponent=b / _HUNDREDTHS,
                        response=get_args(ResponseKind)[kind],
                        power=power / _HUNDREDTHS,
                        time=time / _HUNDREDTHS,
                    )
                )
            except (ValidationError, IndexError):
                raise FederationError("a candidate with settings that cannot be") from None
        if len(set(found)) != len(found):
            raise FederationError("a candidate that is asked for twice")
        return tuple(found)

    def weights(self, eigenvalues: Float32) -> Float32:
        """Return h(lambda) up to the rank."""
        leading = eigenvalues[: self.rank]
        found = response(leading, self.response, power=self.power, time=self.time)
        return found.astype(np.float32)


def pack_candidates(candidates: Iterable[Candidate]) -> bytes:
    return b"".join(candidate.pack() for candidate in candidates)


@dataclass(frozen=True)
class ValidationMetrics(Contribution):
    """Sums of NDCG@20 and Recall@20 over people for each candidate, and the number of people.

    Each of a person's numbers is between 0 and 1, in units of 2^-FRACTION_BITS, and counts are
    smaller still. n_users * 2^FRACTION_BITS therefore bounds every sum, and no sum of any part of
    the cohort leaves the ring.
    """

    name: ClassVar[str] = "validation-metrics"
    gives_away: ClassVar[str] = (
        "how well each candidate guesses what people have kept back; a server that makes up the "
        "model learns how many people have kept back an item, and with a model that sets a person "
        "apart by other items, whether that person has"
    )
    counts_hits: ClassVar[bool] = True
    n_users: int
    candidates: bytes
    """Packed candidates; see `Candidate.pack`."""
    item_degrees: Integers
    vectors: NDArray[np.int16]
    """S in units of its rows. A model keeps these vectors, the units and the eigenvalues."""
    units: Integers
    """Bits of each row's unit as float32."""
    eigenvalues: Integers
    """Bits of each column's eigenvalue as float32."""

    def __post_init__(self) -> None:
        # Compiled loops do not check array bounds.
        if self.vectors.ndim != 2 or self.vectors.dtype != np.int16:
            raise FederationError("vectors must be a matrix of 16-bit integers")
        if (len(self.units), len(self.eigenvalues)) != self.vectors.shape:
            raise FederationError("vectors whose units or eigenvalues are of another number")
        if len(self.item_degrees) != len(self.vectors):
            raise FederationError(f"vectors of {len(self.vectors)} items for another catalogue")

    @classmethod
    def planned(
        cls, n_items: int, n_users: int, rank: int, candidates: Sequence[Candidate]
    ) -> PlannedSum:
        packed = pack_candidates(candidates)
        told = packed_bytes(n_items * rank, 8) + FLOAT_BYTES * (n_items + rank) + len(packed)
        unit = cls._encoding(n_users)
        shape = SumShape(2 * len(candidates) + 1, unit.width, unit.signed, told)
        return PlannedSum(cls, shape, {"n_users": n_users, "candidates": packed})

    @classmethod
    def of(  # type: ignore[override]
        cls, basis: KeptBasis, item_degrees: Integers, n_users: int, candidates: bytes
    ) -> ValidationMetrics:
        return cls(
            n_users,
            candidates,
            item_degrees,
            basis.vectors.astype(np.int16),
            basis.units.view(np.int32).astype(np.int64),
            basis.eigenvalues.view(np.int32).astype(np.int64),
        )

    @staticmethod
    def _encoding(n_users: int) -> FixedPoint:
        width = FixedPoint.counting(n_users << FRACTION_BITS).width
        return FixedPoint(width, FRACTION_BITS, signed=False)

    @property
    def n_items(self) -> int:  # type: ignore[override]
        return len(self.item_degrees)

    @property
    def encoding(self) -> FixedPoint:
        return self._encoding(self.n_users)

    @property
    def shape(self) -> SumShape:
        told = block_bytes(self.vectors) + FLOAT_BYTES * (len(self.units) + len(self.eigenvalues))
        told += len(self.candidates)
        return SumShape(2 * len(self.listed) + 1, self.encoding.width, False, told)

    @property
    def items_in_use(self) -> int:
        return int(np.count_nonzero(self.item_degrees))

    @cached_property
    def listed(self) -> tuple[Candidate, ...]:
        """The unpacked candidates."""
        return Candidate.unpack_all(self.candidates)

    @cached_property
    def basis(self) -> KeptBasis:
        """The basis as a model keeps it."""
        units, eigenvalues = (
            bits.astype(np.int32).view(np.float32) for bits in (self.units, self.eigenvalues)
        )
        return KeptBasis(self.vectors.astype(np.int8), units, eigenvalues)

    # --- checks of a client -----------------------------------------------------------------------

    def check(self, context: ClientContext) -> None:
        """Refuse a basis that no honest run produces.

        It must be orthonormal, lie on items in use, and hold numbers that a model can have. A
        policy judges its concentration on single items (`aim`).
        """
        context.check_item_degrees(self.item_degrees)
        if max(candidate.rank for candidate in self.listed) != self.vectors.shape[1]:
            raise FederationError("candidates of other ranks than the basis has columns")
        if np.abs(self.vectors.astype(np.int64)).max(initial=0) > LARGEST_BYTE:
            raise FederationError("vectors with entries that no model has")
        if self.units.min(initial=0) < 0 or self.units.max(initial=0) >= INFINITY:
            raise FederationError("units that cannot be")
        values = self.eigenvalues
        if values.min(initial=0) < 0 or values.max(initial=0) > ONE or (np.diff(values) > 0).any():
            raise FederationError("eigenvalues that cannot be")
        if not (values[0] and self.vectors[:, 0].any()):
            raise FederationError("a basis of nothing: items would be ranked by their numbers")
        if self.vectors[self.item_degrees == 0].any():
            raise FederationError("a basis that lies on items which nobody has")
        self._as_block.check_coarse(SKEW)

    @property
    def aim(self) -> Aim:
        return self._as_block.aim_of_span()

    @cached_property
    def _as_block(self) -> PowerStep:
        """The basis as the block of a power step, whose checks it must pass."""
        return PowerStep.of(self.basis.written_out().astype(np.float64), self.item_degrees, 64)

    # --- computation of a client ------------------------------------------------------------------

    def blocks(
        self, histories: Histories, randomness: RandomStream = NO_RANDOMNESS
    ) -> Iterator[Integers]:
        return self.pieces(self.total(histories))

    def total(
        self, histories: Histories, randomness: Iterable[ClientStream] = NO_RANDOMNESS
    ) -> Integers:
        out = np.zeros(self.length, np.int64)
        if histories.held_out is None:
            return out
        some = np.flatnonzero(np.diff(histories.held_out.indptr))
        kept, held_out = (each[some] for each in (histories.matrix, histories.held_out))
        out[-1] = len(some)
        sums = out[:-1].reshape(-1, 2)
        at_once = max(1, SCORES_AT_ONCE // (len(self._by_coordinates) * max(1, self.n_items)))
        for first in range(0, len(some), at_once):
            users = slice(first, first + at_once)
            sums += self._measured(kept[users], held_out[users])
        return out

    def collect(self, blocks: Iterable[Integers]) -> Integers:
        """Return the totals, clipped to the possible range in case the aggregation left noise."""
        return np.clip(super().collect(blocks), 0, self.n_users << FRACTION_BITS)

    @cached_property
    def _by_coordinates(self) -> list[list[int]]:
        """Candidate numbers, grouped if the candidates differ only in the exponent of scored
        items."""
        groups: dict[Candidate, list[int]] = {}
        for number, candidate in enumerate(self.listed):
            alike = candidate.model_copy(update={"item_exponent": 0.0})
            groups.setdefault(alike, []).append(number)
        return list(groups.values())

    def _measured(self, kept: sp.csr_array, held_out: sp.csr_array) -> Integers:
        """Return the sums over these users: NDCG and Recall of each candidate."""
        sums = np.zeros((len(self.listed), 2), np.int64)
        used, places = np.unique(kept.indices, return_inverse=True)
        few = sp.csr_array((kept.data, places, kept.indptr), shape=(kept.shape[0], len(used)))
        groups = self._by_coordinates
        coordinates = [self._coordinates(few, used, self.listed[group[0]]) for group in groups]
        products = self._products(np.concatenate(coordinates))
        for group, rows in zip(groups, np.split(products, len(groups)), strict=True):
            for number in group:
                scales = self._item_scales(self.listed[number].item_exponent)
                scores = (rows * scales).astype(np.float32)
                lists = Parts(scores).best(TOP, kept)[0]
                recall, ndcg = ranking.measure_rankings(lists, held_out)
                sums[number] = _in_units(ndcg).sum(), _in_units(recall).sum()
        return sums

    def _coordinates(
        self, few: sp.csr_array, used: NDArray[np.int64], candidate: Candidate
    ) -> NDArray[np.float64]:
        """Return x V^-a S h(lambda) of each history, over the items used in these histories.

        The result is in whole numbers up to 2^COORDINATE_BITS; a ranked list does not depend on
        their unit. Entries beyond the candidate's rank are zero.
        """
        weights = candidate.weights(self.basis.eigenvalues)
        exponent = candidate.history_exponent
        side = self.basis.history_side(self.item_degrees, exponent, weights, used)
        found = history_coordinates(few, side).astype(np.float64)
        largest = np.abs(found).max(axis=1, initial=0.0)
        shift = COORDINATE_BITS - np.frexp(largest)[1]
        out = np.zeros((few.shape[0], self.vectors.shape[1]))
        out[:, : candidate.rank] = np.rint(np.ldexp(found, shift[:, None]))
        return out

    def _products(self, coordinates: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the products of the coordinates and the vectors of all items.

        All are whole numbers, and sums of at most 2^COORDINATE_BITS 127 rank are exact in double
        precision up to ranks of 2^22. The result is therefore the same in any order and for any
        batch.
        """
        out = np.empty((len(coordinates), self.n_items))
        for first in range(0, self.n_items, _ROWS):
            vectors = self.vectors[first : first + _ROWS].astype(np.float64)
            np.matmul(coordinates, vectors.T, out=out[:, first : first + _ROWS])
        return out

    def _item_scales(self, exponent: float) -> NDArray[np.float64]:
        return self.basis.item_scales(self.item_degrees, exponent).astype(np.float64)


def _in_units(metrics: NDArray[np.float64]) -> Integers:
    """Return metrics in fixed point, clipped to 0..1 even if a manipulated model led to others."""
    inside = np.clip(np.nan_to_num(metrics, nan=0.0), 0.0, 1.0)
    return np.rint(np.ldexp(inside, FRACTION_BITS)).astype(np.int64)
