"""Choice of a model and its settings on a validation split, within a time budget."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from privirec.data.given import UserItems, as_interactions
from privirec.data.interactions import Dataset, Interactions
from privirec.data.splits import Held, validation_split
from privirec.errors import UsageError
from privirec.evaluation import evaluate
from privirec.filters.components import Components, centralized
from privirec.filters.eigen import Progress
from privirec.filters.normalize import SYMMETRIC
from privirec.filters.operators import Float32
from privirec.filters.parts import Parts
from privirec.models import MODELS, Config, Recommender
from privirec.models.recommending import Recommending

HELD_OUT = 0.2
USERS = 3000
"""Number of random users whose lists are measured."""
SECONDS = 300.0
INVERTED_ENTRIES = 5e10
"""Cubed number of items that is inverted in a second."""

# The cheap ones first: what comes last may find no time.
CANDIDATES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("popularity", {}),
    ("item-knn", {}),
    ("turbo-cf", {}),
    ("turbo-cf", {"alpha": 0.5, "s": 1.0}),
    ("turbo-cf", {"alpha": 0.6, "s": 0.7}),
    ("ridge", {}),
    ("ridge", {"user_exponent": 0.2, "regularisation": 0.13, "item_exponent": 0.4}),
    ("ridge", {"user_exponent": 0.4, "history_exponent": 0.1, "item_exponent": 0.15}),
    ("gf-cf", {}),
    ("ease", {}),
    ("cheby-cf", {}),
    ("cheby-cf", {"flatness": 2.0, "exponent": 0.2}),
    ("cheby-cf", {"flatness": 2.5, "weight": 0.5, "rank": 256, "exponent": 0.35}),
    ("bspm-em", {}),
    (
        "bspm-em",
        {"beta": 0.3, "rank": 384, "sharpen_time": 1.2, "solver": "euler", "combine": True},
    ),
    ("dan", {}),
    ("dan", {"dropout": 0.0, "user_exponent": 0.3, "item_exponent": 0.0, "regularisation": 50}),
    ("ease", {"regularisation": 300}),
)


class Trial(NamedTuple):
    """A candidate and its result on the validation split."""

    model: str
    settings: dict[str, Any]
    ndcg: float | None
    """NDCG@20; None if there was no time for it."""
    seconds: float
    """Wall seconds of fitting and measuring."""


class AutoRecommender(Recommending):
    """The model that ranks best on a validation split, then fitted on all data.

    >>> auto = AutoRecommender(seconds=60).fit(user_items)            # doctest: +SKIP
    >>> auto.model_, auto.trials_                                     # doctest: +SKIP

    A fifth of each history is held out, and each candidate ranks items for a sample of the users.
    The result is exact: like any model fitted without noise it can give histories away.

    Parameters
    ----------
    seconds
        Wall seconds to spend on the choice. The first candidate is always tried; one that would
        take longer than what is left is not.
    candidates
        Pairs of a model's name and its settings; by default a list of good ones for sparse and
        dense data.
    users
        Number of users in the sample.
    by
        Part of each history that is held out: "random" items, or a "block" of items that follow
        each other in number (see `validation_split`).
    seed
        Seed of the split, of the sample and of the fits.
    """

    trials_: list[Trial]
    """All candidates in the order in which they were tried."""
    model_: Recommender
    """The chosen model, fitted on all data."""

    def __init__(
        self,
        seconds: float = SECONDS,
        *,
        candidates: Sequence[tuple[str, dict[str, Any]]] = CANDIDATES,
        users: int = USERS,
        by: Held = "random",
        seed: int = 0,
    ) -> None:
        if not seconds > 0 or users < 1 or not candidates:
            raise UsageError("auto needs seconds above 0, at least one user and one candidate")
        self.seconds, self.users, self.by, self.seed = seconds, users, by, seed
        self.candidates = [(name, MODELS.named(name)(**given).config) for name, given in candidates]
        self._given = [given for _, given in candidates]

    def fit(self, user_items: UserItems) -> Self:
        """Choose a model on the data and fit it on all of them."""
        train = as_interactions(user_items)
        best = self.choose(train)
        self.model_ = MODELS[best.model](**best.settings).fit(train, seed=self.seed)
        return self

    def choose(self, train: Interactions, progress: Progress | None = None) -> Trial:
        """Try the candidates, fill `trials_`, and return the best of them.

        `progress` is called with the number of candidates done and the total.
        """
        rest, held_out = validation_split(train, share=HELD_OUT, seed=self.seed, by=self.by)
        data = Dataset("validation", rest, _sample(held_out, self.users, self.seed))
        self.trials_ = []
        self._shared: Components | None = None
        end = time.monotonic() + self.seconds
        for (name, config), given in zip(self.candidates, self._given, strict=True):
            if progress:
                progress(len(self.trials_), len(self.candidates))
            started = time.monotonic()
            if self.trials_ and started + self._expected(name, data) > end:
                self.trials_.append(Trial(name, given, None, 0.0))
                continue
            ndcg = evaluate(self._fitted(name, config, data), data).ndcg
            self.trials_.append(Trial(name, given, ndcg, time.monotonic() - started))
        self._shared = None
        return max(self.trials_, key=lambda trial: -1.0 if trial.ndcg is None else trial.ndcg)

    def _expected(self, name: str, data: Dataset) -> float:
        """Estimate the seconds of a candidate from an earlier one of the same model."""
        for trial in reversed(self.trials_):
            if trial.model == name and trial.ndcg is not None:
                return trial.seconds
        if name in ("ease", "dan"):
            return data.train.n_items**3 / INVERTED_ENTRIES
        return max(trial.seconds for trial in self.trials_)

    def _fitted(self, name: str, config: Config, data: Dataset) -> Recommender:
        """Return the fitted model; those with a low-pass filter share one set of eigenvectors."""
        model, train = MODELS[name](config), data.train
        if not config.low_pass_rank or config.normalisation != SYMMETRIC:
            return model.fit(train, seed=self.seed)
        if self._shared is None:
            ranks = [each.low_pass_rank for _, each in self.candidates]
            rank = min(max(ranks), train.n_items)
            self._shared = centralized(train, rank=rank, seed=self.seed)
        rank = min(config.low_pass_rank, train.n_items)
        fitting = MODELS[name](config.model_copy(update={"rank": rank}))
        return fitting.use(self._shared, train.item_ids)

    # --- queries, answered by the chosen model --------------------------------------------------

    @property
    def item_ids(self) -> NDArray | None:  # type: ignore[override]
        return self._chosen.item_ids

    @property
    def _chosen(self) -> Recommender:
        if not hasattr(self, "model_"):
            raise UsageError("auto has not been fitted")
        return self.model_

    @property
    def n_items(self) -> int:
        return self._chosen.n_items

    def parts(self, user_items: sp.sparray) -> Parts:
        return self._chosen.parts(user_items)

    def ready_for(self, histories: int, interactions: int) -> None:
        self._chosen.ready_for(histories, interactions)

    def score(self, user_items: sp.sparray) -> Float32:
        return self._chosen.score(user_items)

    def save(self, folder: str | Path) -> Path:
        """Save the chosen model with the whole trial in its manifest."""
        return self._chosen.save(folder, {"chosen_from": [t._asdict() for t in self.trials_]})


def _sample(held_out: Interactions, users: int, seed: int) -> Interactions:
    """Return the held-out items of some users; the others have none."""
    asked = np.flatnonzero(held_out.user_degrees)
    if len(asked) <= users:
        return held_out
    rng = np.random.Generator(np.random.Philox(seed))
    kept = np.zeros(held_out.n_users, bool)
    kept[rng.choice(asked, users, replace=False)] = True
    entries = held_out.matrix.tocoo()
    some = kept[entries.row]
    ids = held_out.user_ids, held_out.item_ids
    return Interactions.from_indices(entries.row[some], entries.col[some], *ids)
