"""Titles of an export matched to the items of a catalogue.

Equal titles are found by a dictionary after both are normalised. For the others, candidates come
from shared trigrams (a sparse product of whole numbers), and difflib grades the best few. difflib
needs no further dependency; a compiled library such as rapidfuzz would save milliseconds here,
because only a few candidates of each title are graded.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import StrEnum
from functools import cached_property, lru_cache

import numpy as np
import scipy.sparse as sp

SURE = 0.92
"""Least similarity of titles that are taken for the same."""
UNSURE = 0.75
"""Least similarity of titles that are shown to the person."""
LEAD = 0.04
"""Least distance of a sure match to the next best one."""
SHORTEST = 5
"""Letters of a title that may be matched by similarity; shorter ones are easily mistaken."""
_CANDIDATES = 8


class How(StrEnum):
    """Quality of a match."""

    EXACT = "exact"
    CLOSE = "close"
    UNSURE = "unsure"
    NONE = "none"


@dataclass(frozen=True)
class Match:
    """The best items for a title; only an exact or a close match has exactly one."""

    how: How
    items: tuple[str, ...] = ()
    similarity: float = 0.0


_ROMAN = {"ii": "2", "iii": "3", "iv": "4", "vi": "6", "vii": "7", "viii": "8", "ix": "9"}
_BRACKETS = re.compile(r"\s*[(\[][^()\[\]]*[)\]]")
_EDITION = re.compile(
    r"\s+-\s+(?:[^-]*\b(?:remaster(?:ed)?|version|edit|mix|mono|stereo|live|edition|cut|single|"
    r"demo|acoustic)\b[^-]*)$",
    re.IGNORECASE,
)
_YEAR = re.compile(r"\((?P<year>(?:18|19|20)\d\d)\)")


@lru_cache(maxsize=1 << 16)
def normalised(title: str) -> str:
    """Return a title in lower case, without accents, punctuation and a leading article."""
    text = unicodedata.normalize("NFKD", title).casefold().replace("&", " and ")
    text = "".join(each for each in text if not unicodedata.combining(each))
    text = text.replace("'", "").replace("\u2019", "")
    words = re.sub(r"[\W_]+", " ", text).split()
    words = [_ROMAN.get(word, word) for word in words]
    if len(words) > 1 and words[-1] in ("the", "a", "an"):  # "Garden, The"
        words = words[:-1]
    elif len(words) > 1 and words[0] in ("the", "a", "an"):
        words = words[1:]
    return " ".join(words)


def bare(title: str) -> str:
    """Return a normalised title without brackets and without the name of an edition."""
    return normalised(_EDITION.sub("", _BRACKETS.sub("", title))) or normalised(title)


def year_of(title: str) -> str:
    found = _YEAR.search(title)
    return found["year"] if found else ""


def _serial(title: str) -> tuple[str, ...]:
    """Return the numbers of parts or seasons in a title, also those in brackets."""
    return tuple(re.findall(r"\b\d{1,3}\b", normalised(title)))


def similarity(first: str, second: str) -> float:
    """Return how similar two normalised titles are, from 0 to 1; 0 if their numbers differ."""
    if _numbers(first) != _numbers(second):
        return 0.0
    by_letter = _ratio(first, second)
    by_word = _ratio(*(" ".join(sorted(each.split())) for each in (first, second)))
    return max(by_letter, by_word)


def _ratio(first: str, second: str) -> float:
    # The matcher depends on the order of its texts.
    one, other = sorted((first, second))
    return SequenceMatcher(None, one, other, autojunk=False).ratio()


def _numbers(title: str) -> Counter[str]:
    return Counter(re.findall(r"\d+", title))


class Matcher:
    """The titles of a catalogue, by which items are found."""

    def __init__(self, titles: Mapping[str, str], ids: Iterable[str] = ()) -> None:
        """Prepare matching to `titles` by item, and to items without titles by their `ids`."""
        self.titles = titles
        self._ids = {*titles, *ids}
        self._exact: dict[str, list[str]] = defaultdict(list)
        self._bare: dict[str, list[str]] = defaultdict(list)
        for item, title in titles.items():
            if name := normalised(title):
                self._exact[name].append(item)
                self._bare[bare(title)].append(item)

    def __len__(self) -> int:
        return len(self._ids)

    def match(
        self, names: Sequence[str], by: str = "", ids: Sequence[str] = (), *, fuzzy: bool = True
    ) -> Match:
        """Return the items that have one of these ids or names, the most specific name first."""
        for each in ids:
            if each in self._ids:
                return Match(How.EXACT, (each,), 1.0)
        wanted = [full for name in names for full in _with_maker(name, by)]
        for index, form in ((self._exact, normalised), (self._bare, bare)):
            for name in wanted:
                found = self._that_may_be(index.get(form(name), []), name)
                if len(found) == 1 and _serial(name) == _serial(self.titles[found[0]]):
                    return Match(How.EXACT, tuple(found), 1.0)
                if found:
                    return Match(How.UNSURE, tuple(found[:_CANDIDATES]), 1.0)
        return self._similar(wanted) if fuzzy else Match(How.NONE)

    def _that_may_be(self, items: Sequence[str], name: str) -> list[str]:
        """Return the items whose title has no other year and no other number than the name."""
        return [
            item
            for item in items
            for title in (self.titles[item],)
            if all(
                not (own and other and own != other)
                for own, other in (
                    (year_of(name), year_of(title)),
                    (_serial(name), _serial(title)),
                )
            )
        ]

    def _similar(self, names: Sequence[str]) -> Match:
        graded: dict[str, float] = {}
        for name in names:
            for item in self._candidates(bare(name)):
                title = self.titles[item]
                if self._that_may_be([item], name):
                    alike = similarity(bare(name), bare(title))
                    graded[item] = max(graded.get(item, 0.0), alike)
        ranked = sorted(graded.items(), key=lambda pair: (-pair[1], pair[0]))
        ranked = [pair for pair in ranked if pair[1] >= UNSURE]
        if not ranked:
            return Match(How.NONE)
        best = ranked[0][1]
        if best >= SURE and (len(ranked) == 1 or best - ranked[1][1] >= LEAD):
            return Match(How.CLOSE, (ranked[0][0],), best)
        return Match(How.UNSURE, tuple(item for item, _ in ranked[:3]), best)

    def _candidates(self, name: str) -> list[str]:
        """Return the items whose titles share most trigrams with a name."""
        if len(name) < SHORTEST or not self._names:
            return []
        letters, table, sizes = self._trigrams
        own = [letters[each] for each in _trigrams(name) if each in letters]
        if not own:
            return []
        shared = np.bincount(
            np.concatenate([table.indices[table.indptr[at] : table.indptr[at + 1]] for at in own]),
            minlength=len(self._names),
        )
        # Twice the shared trigrams over all of both, compared as whole numbers are: exactly.
        alike = 2.0 * shared / (sizes + len(_trigrams(name)))
        order = np.lexsort((np.arange(len(alike)), -alike))[:_CANDIDATES]
        items: list[str] = []
        for at in order.tolist():
            if shared[at] and len(self._names[at]) >= SHORTEST:
                items += self._bare[self._names[at]]
        return items

    @cached_property
    def _names(self) -> list[str]:
        return sorted(self._bare)

    @cached_property
    def _trigrams(self) -> tuple[dict[str, int], sp.csr_array, np.ndarray]:
        """Numbers of trigrams, the titles that have each, and the number of them in each title."""
        letters: dict[str, int] = {}
        rows: list[int] = []
        columns: list[int] = []
        sizes = np.zeros(len(self._names), np.int64)
        for at, name in enumerate(self._names):
            own = _trigrams(name)
            sizes[at] = len(own)
            rows += [letters.setdefault(each, len(letters)) for each in own]
            columns += [at] * len(own)
        shape = (len(letters), len(self._names))
        ones = np.ones(len(rows), np.int8)
        return letters, sp.csr_array((ones, (rows, columns)), shape=shape), sizes


def _trigrams(name: str) -> list[str]:
    padded = f"  {name} "
    return sorted({padded[at : at + 3] for at in range(len(padded) - 2)})


def _with_maker(name: str, by: str) -> tuple[str, ...]:
    """Return a title with and without its artist or author, the most specific first."""
    return (f"{by} {name}", f"{name} {by}", f"{name} by {by}", name) if by else (name,)
