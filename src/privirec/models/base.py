"""What every model shares: fitting, recommending, saving. A model adds config and scorer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import scipy.sparse as sp
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from privirec.data.interactions import Interactions
from privirec.errors import ArtifactError, UsageError
from privirec.filters import kernels
from privirec.filters.components import Components, centralized
from privirec.filters.operators import Float32
from privirec.models import artifact

USERS_AT_ONCE = 256


class Config(BaseModel):
    """Settings of a model. Unknown names are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @property
    def normalisation(self) -> float:
        """The alpha with which the item-item matrix must be normalised."""
        return 0.5

    @property
    def low_pass_rank(self) -> int:
        """How many singular vectors the model needs (0: none)."""
        return 0


class Recommender(ABC):
    """A closed-form recommender on released filters.

    >>> model = GFCF(rank=64).fit(user_items)                        # doctest: +SKIP
    >>> ids, scores = model.recommend(7, user_items[[7]], N=10)      # doctest: +SKIP
    """

    name: ClassVar[str]
    title: ClassVar[str]
    config_type: ClassVar[type[Config]]
    published: ClassVar[dict[str, Config]]
    """The settings its authors published, by data set."""

    def __init__(self, config: Config | None = None, **settings: Any) -> None:
        try:
            self.config = config or self.config_type(**settings)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "settings"
            raise UsageError(f"{self.name}: {where}: {first['msg']}") from None
        self._components: Components | None = None
        self.item_ids: NDArray | None = None

    # --- learning -----------------------------------------------------------------------------

    def fit(
        self,
        user_items: sp.sparray | Interactions,
        *,
        seed: int = 0,
        progress: Callable[[int, int], None] | None = None,
    ) -> Self:
        """Learn from all histories on this machine (rows users, columns items)."""
        train = (
            user_items
            if isinstance(user_items, Interactions)
            else Interactions.from_matrix(user_items)
        )
        components = centralized(
            train,
            rank=self.config.low_pass_rank,
            alpha=self.config.normalisation,
            seed=seed,
            progress=progress,
        )
        return self.use(components, train.item_ids)

    def use(self, components: Components, item_ids: NDArray | None = None) -> Self:
        """Take filters that were computed elsewhere, for example by a federation."""
        if components.alpha != self.config.normalisation:
            raise UsageError(
                f"{self.name} needs filters with alpha = {self.config.normalisation}, "
                f"not {components.alpha}"
            )
        self._prepare(components)
        self._components = components
        self.item_ids = np.arange(components.n_items) if item_ids is None else item_ids
        return self

    @property
    def components(self) -> Components:
        if self._components is None:
            raise UsageError(f"{self.name} has not been fitted")
        return self._components

    # --- what a model defines -------------------------------------------------------------------

    @abstractmethod
    def _prepare(self, components: Components) -> None:
        """Derive from the components what scoring needs."""

    @abstractmethod
    def _score(self, histories: sp.csr_array) -> Float32:
        """Scores of every item: (users, items)."""

    # --- recommending -----------------------------------------------------------------------------

    def score(self, user_items: sp.sparray) -> Float32:
        """Scores of every item for each history: (users, items)."""
        return self._score(_histories(user_items, self.components.n_items))

    def recommend(
        self,
        userid: ArrayLike,
        user_items: sp.sparray,
        N: int = 10,
        filter_already_liked_items: bool = True,
    ) -> tuple[NDArray[np.int64], Float32]:
        """The N best items for each history, best first, equal scores by lower item number.

        `user_items` holds the history of `userid` (one row), or of each of several. Returns item
        numbers and scores, of shape (N,) for one user and (users, N) for an array of users; where
        there are not enough items the rest is -1 with a score of minus infinity.
        """
        histories = _histories(user_items, self.components.n_items)
        if histories.shape[0] != np.size(userid):
            raise UsageError(f"{np.size(userid)} users but {histories.shape[0]} histories")
        if N < 1:
            raise UsageError("N must be at least 1")
        ids = np.empty((histories.shape[0], N), np.int64)
        scores = np.empty((histories.shape[0], N), np.float32)
        for start in range(0, len(ids), USERS_AT_ONCE):
            part = slice(start, start + USERS_AT_ONCE)
            block = self._score(histories[part])
            if filter_already_liked_items:
                kernels.mask_entries(histories[part].indptr, histories[part].indices, block)
            kernels.top_items(block, ids[part], scores[part])
        return (ids[0], scores[0]) if np.ndim(userid) == 0 else (ids, scores)

    def similar_items(self, itemid: int, N: int = 10) -> tuple[NDArray[np.int64], Float32]:
        """Items that the filter raises for somebody who has touched only this one."""
        n_items = self.components.n_items
        if not 0 <= itemid < n_items:
            raise UsageError(f"item {itemid} is not in a catalogue of {n_items}")
        history = sp.csr_array(([1.0], ([0], [itemid])), shape=(1, n_items))
        return self.recommend(0, history, N)

    # --- keeping ----------------------------------------------------------------------------------

    def save(
        self,
        folder: str | Path,
        manifest: dict[str, Any] | None = None,
        *,
        signing_key: Ed25519PrivateKey | None = None,
    ) -> Path:
        """Write `model.safetensors` and `manifest.json`, all or nothing. Holds no history."""
        record = {"model": self.name, "config": self.config.model_dump(), **(manifest or {})}
        ids = np.arange(self.components.n_items) if self.item_ids is None else self.item_ids
        components = self.components.written_out()
        return artifact.write(Path(folder), components, ids, record, signing_key)

    @staticmethod
    def load(
        folder: str | Path,
        *,
        trusted_key: Ed25519PublicKey | None = None,
        mmap: bool = True,
        verify: bool = True,
    ) -> Recommender:
        """Read what `save` wrote (see `artifact.read`). Never executes code from the file."""
        from privirec.models import MODELS  # noqa: PLC0415 - the registry imports this module

        components, item_ids, manifest = artifact.read(
            Path(folder), trusted_key, mmap=mmap, verify=verify
        )
        name, config = manifest.get("model"), manifest.get("config")
        model = MODELS.get(name) if isinstance(name, str) else None
        if model is None:
            raise ArtifactError(f"{folder}: unknown model {name!r}")
        try:
            return model(model.config_type.model_validate(config)).use(components, item_ids)
        except ValidationError:
            raise ArtifactError(f"{folder}: not a config of {name}") from None
        except UsageError as error:
            raise ArtifactError(f"{folder}: {error}") from None


def _histories(user_items: sp.sparray, n_items: int) -> sp.csr_array:
    histories = sp.csr_array(user_items)
    if histories.shape[1] != n_items:
        raise UsageError(f"histories over {histories.shape[1]} items, filters over {n_items}")
    if not histories.has_canonical_format or not histories.data.all():
        histories = histories.copy()
        histories.sum_duplicates()
        histories.eliminate_zeros()
    return histories
