"""Sums that earlier runs released, and how a later run of `protected` adds to them.

Histories of the same people overlap from run to run, so sums of earlier runs estimate nearly what
the sums of the next run do. `Estimate.added` combines them by the inverse of their noise variance,
after scaling the earlier values by the growth that both show (`growth`). Popularity and pairs are
combined entry by entry.

A power step releases the image of a block: the item-item matrix times the block, plus noise. All
images of earlier runs together give the image of a new block by weighted least squares
(`combined_image`), as far as the new block lies in the span of the earlier ones.

All of this uses released values only, so it costs no privacy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from privirec.errors import UsageError

Numbers = NDArray[np.float64]
Places = NDArray[np.int64]

UNKNOWN = -1
"""In place of an item that a catalogue does not have."""
_ENOUGH = 100
"""Fewest entries from which growth is read."""
_CLEAR = 5.0
"""Deviations by which energy must exceed that of noise alone before growth is read from it."""


@dataclass(frozen=True)
class Estimate:
    """Noisy numbers with the variance of their noise, which is infinite where nothing is known."""

    values: Numbers
    variances: Numbers

    @classmethod
    def of(cls, values: Numbers, deviation: float) -> Self:
        """Return numbers that all have noise of this standard deviation."""
        return cls(np.asarray(values, np.float64), np.full(np.shape(values), deviation**2))

    @classmethod
    def unknown(cls, entries: int) -> Self:
        return cls(np.zeros(entries), np.full(entries, np.inf))

    @property
    def is_known(self) -> NDArray[np.bool_]:
        return np.isfinite(self.variances)

    @property
    def deviation(self) -> float:
        """Root of the mean variance of what is known."""
        known = self.variances[self.is_known]
        return float(np.sqrt(known.mean())) if len(known) else 0.0

    def times(self, factors: Numbers | float) -> Estimate:
        return Estimate(self.values * factors, self.variances * np.square(factors))

    def take(self, places: Places) -> Estimate:
        """Return the entries at these places; those of UNKNOWN places are not known."""
        values, variances = np.zeros(len(places)), np.full(len(places), np.inf)
        some = places != UNKNOWN
        values[some], variances[some] = self.values[places[some]], self.variances[places[some]]
        return Estimate(values, variances)

    def added(self, new: Estimate) -> Estimate:
        """Return the inverse-variance estimate from these numbers, scaled for growth, and new
        ones."""
        earlier = self.times(growth(self, new))
        precisions = 1 / earlier.variances, 1 / new.variances
        total = precisions[0] + precisions[1]
        some = total > 0
        values = np.zeros(len(total))
        weighted = earlier.values * precisions[0] + new.values * precisions[1]
        np.divide(weighted, total, out=values, where=some)
        variances = np.full(len(total), np.inf)
        np.divide(1.0, total, out=variances, where=some)
        return Estimate(values, variances)


def growth(earlier: Estimate, new: Estimate) -> float:
    """Return the factor by which the numbers have grown, from entries that both know.

    It is the weighted regression of new values on earlier ones, without the energy that noise adds
    to the earlier ones. It is one if the signal does not exceed the noise, or with few entries.
    """
    both = earlier.is_known & new.is_known
    if both.sum() < _ENOUGH:
        return 1.0
    old, variances = earlier.values[both], earlier.variances[both]
    weights = 1 / (variances + new.variances[both])
    energy = float((weights * (np.square(old) - variances)).sum())
    common = float((weights * old * new.values[both]).sum())
    # the deviation of `energy` if all is noise
    chance = float(np.sqrt(2 * np.square(weights * variances).sum()))
    if energy <= _CLEAR * chance or common <= 0:
        return 1.0
    return common / energy


@dataclass(frozen=True)
class Image:
    """The image of an orthonormal block that a power step released."""

    items: Places
    """Items of the rows, in ascending order."""
    block: Numbers
    image: Numbers
    precisions: Numbers
    """Inverse of the noise variance in each column, up to factors of the rows."""

    def over(self, items: Places) -> tuple[NDArray[np.bool_], Numbers, Numbers]:
        """Return which of these items have a row, and the rows of block and image (or zeros)."""
        places = places_of(items, self.items)
        known = places != UNKNOWN
        return known, _rows(self.block, places), _rows(self.image, places)


def combined_image(items: Places, block: Numbers, images: Sequence[Image]) -> Numbers:
    """Return the image of a block from all images, by least squares weighted by precision.

    Image t is about M C with C = block^T (its block), for the unknown image M. Rows differ in which
    images know them, so each group of rows with the same ones is solved for together.
    """
    columns = block.shape[1]
    parts = []
    for one in images:
        known, earlier_block, image = one.over(items)
        coordinates = (block.T @ earlier_block) * one.precisions
        parts.append((known, image @ coordinates.T, coordinates @ (block.T @ earlier_block).T))
    knows = np.stack([known for known, _, _ in parts], axis=1)
    patterns, group = np.unique(knows, axis=0, return_inverse=True)
    found = np.zeros((len(items), columns))
    for number, pattern in enumerate(patterns):
        if not pattern.any():
            continue
        rows = np.flatnonzero(group.reshape(-1) == number)
        hit = np.zeros((len(rows), columns))
        information = np.zeros((columns, columns))
        for knows_it, (_, weighted, precision) in zip(pattern, parts, strict=True):
            if knows_it:
                hit += weighted[rows]
                information += precision
        # directions that no image covers stay zero
        found[rows] = hit @ np.linalg.pinv(information, rcond=1e-9, hermitian=True)
    return found


@dataclass(frozen=True)
class Earlier:
    """All that earlier runs released, over one catalogue."""

    popularity: Estimate
    signal: float
    """Signal (`Promise.signal`) of all earlier runs together."""
    gram_items: Places = field(default_factory=lambda: np.zeros(0, np.int64))
    gram: Estimate = field(default_factory=lambda: Estimate.unknown(0))
    """Pairs of these items, as a triangle (`triangle_of`), without the weights of a run."""
    images: tuple[Image, ...] = ()
    strengths: Numbers = field(default_factory=lambda: np.zeros(0))
    """Strengths of the columns of the last block."""
    last: Numbers = field(default_factory=lambda: np.zeros((0, 0)))
    """Last basis of the power steps, over `last_items`."""
    last_items: Places = field(default_factory=lambda: np.zeros(0, np.int64))
    pair_first: Places = field(default_factory=lambda: np.zeros(0, np.int64))
    pair_second: Places = field(default_factory=lambda: np.zeros(0, np.int64))
    pairs: Estimate = field(default_factory=lambda: Estimate.unknown(0))
    """Similar pairs of items, and how many people have both."""

    @property
    def n_items(self) -> int:
        return len(self.popularity.values)

    @classmethod
    def nothing(cls, n_items: int) -> Earlier:
        return cls(Estimate.unknown(n_items), 0.0)

    # --- the sums of a run ------------------------------------------------------------------------

    def start(self, items: Places, columns: int) -> tuple[Numbers, Numbers]:
        """Return the rows of the last basis for these items, and the strengths of its columns.

        At most so many columns, and none if there was no basis.
        """
        found = _rows(self.last, places_of(items, self.last_items))[:, :columns]
        return found, self.strengths[:columns]

    def with_images(
        self, images: Sequence[Image], items: Places, basis: Numbers, strengths: Numbers
    ) -> Earlier:
        """Return the sums with all images of power steps, and the basis that they lead to."""
        return replace(
            self, images=tuple(images), last=basis, last_items=items, strengths=strengths
        )

    def with_gram(self, items: Places, triangle: Estimate) -> Earlier:
        """Return the sums with those of pairs among these items, which are without weights.

        Pairs that only earlier runs know are kept: an item can come back into the head.
        """
        every = np.union1d(self.gram_items, items)
        earlier = self.gram_over(every)
        new = triangle.take(_triangle_places(every, items))
        return replace(self, gram_items=every, gram=earlier.added(new))

    def gram_over(self, items: Places) -> Estimate:
        """Return what is known of the pairs among these items, as a triangle."""
        return self.gram.take(_triangle_places(items, self.gram_items))

    def with_pairs(self, first: Places, second: Places, counts: Estimate) -> Earlier:
        """Return the sums with those of more similar pairs, given by items."""
        old, new = self._keys(self.pair_first, self.pair_second), self._keys(first, second)
        every = np.union1d(old, new)
        earlier = self.pairs.take(places_of(every, old))
        order = np.argsort(new)
        added = earlier.added(
            Estimate(counts.values[order], counts.variances[order]).take(
                places_of(every, new[order])
            )
        )
        return replace(
            self,
            pair_first=every // self.n_items,
            pair_second=every % self.n_items,
            pairs=added,
        )

    def _keys(self, first: Places, second: Places) -> Places:
        return first * self.n_items + second

    # --- other catalogues, and arrays -------------------------------------------------------------

    def over(self, places: Places) -> Earlier:
        """Return the sums over another catalogue; `places` has the earlier place of each of its
        items, or UNKNOWN."""
        now = np.full(self.n_items, UNKNOWN)
        some = places != UNKNOWN
        now[places[some]] = np.flatnonzero(some)
        gram_items, gram = self._moved_gram(now)
        first, second = now[self.pair_first], now[self.pair_second]
        both = (first != UNKNOWN) & (second != UNKNOWN)
        n_items = len(places)
        low, high = np.minimum(first, second)[both], np.maximum(first, second)[both]
        order = np.argsort(low * n_items + high)
        last_items, last = _moved(now, self.last_items, self.last)
        return replace(
            self,
            popularity=self.popularity.take(places),
            gram_items=gram_items,
            gram=gram,
            images=tuple(_moved_image(now, image) for image in self.images),
            last=last,
            last_items=last_items,
            pair_first=low[order],
            pair_second=high[order],
            pairs=self.pairs.take(np.flatnonzero(both)[order]),
        )

    def _moved_gram(self, now: Places) -> tuple[Places, Estimate]:
        moved = now[self.gram_items]
        order = np.argsort(moved, kind="stable")
        order = order[moved[order] != UNKNOWN]
        rows, columns = _triangle(len(order))
        first, second = order[rows], order[columns]
        places = _place_in_triangle(
            np.minimum(first, second), np.maximum(first, second), len(moved)
        )
        return moved[order], self.gram.take(places)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all of it as arrays to save."""
        found: dict[str, NDArray[Any]] = {
            "popularity": self.popularity.values,
            "popularity.variances": self.popularity.variances,
            "signal": np.array([self.signal]),
            "gram.items": self.gram_items,
            "gram": self.gram.values.astype(np.float32),
            "gram.variances": self.gram.variances.astype(np.float32),
            "strengths": self.strengths,
            "last": self.last,
            "last.items": self.last_items,
            "pairs.first": self.pair_first,
            "pairs.second": self.pair_second,
            "pairs": self.pairs.values,
            "pairs.variances": self.pairs.variances,
        }
        for number, image in enumerate(self.images):
            found |= {
                f"image.{number}.items": image.items,
                f"image.{number}.block": image.block.astype(np.float32),
                f"image.{number}": image.image.astype(np.float32),
                f"image.{number}.precisions": image.precisions,
            }
        return found

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Earlier:
        """Return what `arrays` saved; raise UsageError if these are not such arrays."""

        def numbers(name: str) -> Numbers:
            return np.array(arrays[name], np.float64)

        def places(name: str) -> Places:
            return np.array(arrays[name], np.int64)

        def estimate(name: str) -> Estimate:
            return Estimate(numbers(name), numbers(f"{name}.variances"))

        try:
            images: list[Image] = []
            while (name := f"image.{len(images)}") in arrays:
                block = numbers(f"{name}.block")
                rows, precisions = places(f"{name}.items"), numbers(f"{name}.precisions")
                images.append(Image(rows, block, numbers(name), precisions))
            found = cls(
                estimate("popularity"),
                float(arrays["signal"][0]),
                places("gram.items"),
                estimate("gram"),
                tuple(images),
                numbers("strengths"),
                numbers("last"),
                places("last.items"),
                places("pairs.first"),
                places("pairs.second"),
                estimate("pairs"),
            )
            found._check()
        except (KeyError, IndexError, ValueError) as error:
            raise UsageError(f"not the released sums of a protected run ({error})") from None
        return found

    def _check(self) -> None:
        """Raise ValueError unless all parts fit together."""
        size = len(self.gram_items)
        sums = (self.popularity, self.gram, self.pairs)
        fits = (
            self.signal >= 0
            and all(one.values.shape == one.variances.shape for one in sums)
            and all((one.variances > 0).all() for one in sums)
            and all(np.isfinite(one.values).all() for one in sums)
            and self.gram.values.shape == (size * (size + 1) // 2,)
            and self.pairs.values.shape == self.pair_first.shape == self.pair_second.shape
            and self.last.shape == (len(self.last_items), len(self.strengths))
            and all(
                image.block.shape == image.image.shape == (len(image.items), len(image.precisions))
                for image in self.images
            )
        )
        of_items = [self.gram_items, self.last_items, *[image.items for image in self.images]]
        in_order = all((np.diff(items) > 0).all() for items in of_items)
        of_items += [self.pair_first, self.pair_second]
        inside = all(((items >= 0) & (items < self.n_items)).all() for items in of_items)
        if not (fits and in_order and inside):
            raise ValueError("parts that do not fit together")


def places_of(wanted: Places, among: Places) -> Places:
    """Return the place of each wanted number among ascending ones, or UNKNOWN."""
    if not len(among):
        return np.full(len(wanted), UNKNOWN)
    places = np.minimum(np.searchsorted(among, wanted), len(among) - 1)
    return np.where(among[places] == wanted, places, UNKNOWN)


def _rows(matrix: Numbers, places: Places) -> Numbers:
    """Return rows of a matrix, with zeros for UNKNOWN places."""
    found = np.zeros((len(places), matrix.shape[1]))
    some = places != UNKNOWN
    found[some] = matrix[places[some]]
    return found


def _moved(now: Places, items: Places, rows: Numbers) -> tuple[Places, Numbers]:
    moved = now[items]
    order = np.argsort(moved, kind="stable")
    order = order[moved[order] != UNKNOWN]
    return moved[order], rows[order]


def _moved_image(now: Places, image: Image) -> Image:
    items, block = _moved(now, image.items, image.block)
    return Image(items, block, _moved(now, image.items, image.image)[1], image.precisions)


def _triangle(size: int) -> tuple[Places, Places]:
    rows, columns = np.triu_indices(size)
    return rows.astype(np.int64), columns.astype(np.int64)


def _place_in_triangle(first: Places, second: Places, size: int) -> Places:
    return first * size - first * (first - 1) // 2 + second - first


def _triangle_places(items: Places, among: Places) -> Places:
    """Return where the pairs of items stand in the triangle of others; both are ascending."""
    places = places_of(items, among)
    rows, columns = _triangle(len(items))
    first, second = places[rows], places[columns]
    found = _place_in_triangle(first, second, len(among))
    return np.where((first == UNKNOWN) | (second == UNKNOWN), UNKNOWN, found)
