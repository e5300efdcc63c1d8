"""Base class of all models: fitting, recommending, saving. A model adds config and scorer."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import scipy.sparse as sp
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from privirec.data.given import UserItems, as_interactions, relative, reporting, rows_over
from privirec.data.interactions import Interactions
from privirec.errors import ArtifactError, PrivacyWarning, UsageError, is_meant, warn_of_data
from privirec.filters.components import Components, centralized, with_people
from privirec.filters.eigen import Progress
from privirec.filters.normalize import Normalisation
from privirec.filters.operators import Float32, NotKept, history_coordinates
from privirec.filters.parts import Parts, row_sums_pay
from privirec.models import artifact
from privirec.models.ids import as_ids
from privirec.models.recommending import USERS_AT_ONCE, Recommending
from privirec.registry import Registry

Derived = Mapping[str, NDArray]
_HEADING = "Parameters\n----------"
_METHODS = (
    "fit, partial_fit, use : learn from histories, from more people, or from released filters",
    "recommend, recommend_frame : the best items, as arrays or as a DataFrame",
    "explain, similar_items, similar_users : reasons and likeness",
    "save, load : a folder of arrays; loading runs no code",
    "get_params, set_params, clone : settings",
)
"""Public methods, the most useful first, for `help`."""

CENTRAL_MODEL = (
    "Warning: computed on one machine from all histories; no history is in it as such, but most "
    "can be worked out of an exact item-item matrix: whoever holds the model can run privirec audit"
)
"""Warning for a model that was computed without clients and without noise."""

MODELS: Registry[type[Recommender]] = Registry("models", "model")
"""All models by name; the package registers its own."""


class Config(BaseModel):
    """Settings of a model. Unknown names are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @property
    def normalisation(self) -> Normalisation:
        """Normalisation that the item-item matrix must have."""
        return Normalisation.symmetric()

    @property
    def low_pass_rank(self) -> int:
        """Number of singular vectors that the model needs (0: none)."""
        return 0

    @property
    def needs(self) -> dict[str, Any]:
        """Settings that a program must have to compute the model's filters with clients.

        The keys are names of the program's settings. A program without such a setting cannot
        compute the filters.
        """
        wanted = self.normalisation
        needs: dict[str, Any] = {"alpha": wanted.user / 2}
        if wanted.alpha is None:
            needs |= {"left": wanted.left, "right": wanted.right}
        if self.low_pass_rank:
            needs["rank"] = self.low_pass_rank
        return needs


class Recommender(Recommending):
    """A closed-form recommender on released filters.

    >>> model = GFCF(rank=64).fit(user_items)                        # doctest: +SKIP
    >>> ids, scores = model.recommend(7, user_items[[7]], N=10)      # doctest: +SKIP
    """

    name: ClassVar[str]
    title: ClassVar[str]
    config_type: ClassVar[type[Config]]
    """Type of its settings; `GFCF(rank=64)` is short for `GFCF(GFCFConfig(rank=64))`."""
    published: ClassVar[dict[str, Config]]
    """Settings that its authors published, by data set."""
    derives: ClassVar[dict[str, tuple[str, int]]] = {}
    """Arrays that it derives once and saves, by name: type and dimensions. Never histories."""
    keeps_item_item: ClassVar[bool] = True
    """True if it scores from the item-item matrix itself; otherwise the matrix is not saved."""
    takes_no_weights: ClassVar[str] = ""
    """Reason why it cannot be fitted on weighted interactions; empty if it can."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if hasattr(cls, "config_type"):
            _describe(cls, cls.config_type)

    def __init__(self, config: Config | None = None, **settings: Any) -> None:
        if config is not None and (settings or not isinstance(config, self.config_type)):
            raise UsageError(f"{self.name}: give a {self.config_type.__name__}, or its settings")
        try:
            self.config = config or self.config_type(**settings)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "settings"
            if first["type"] == "extra_forbidden":
                known = self.config_type.model_fields
                hint = is_meant(where, known) or f"; there are {', '.join(known)}"
                raise UsageError(f"{self.name}: there is no setting {where}{hint}") from None
            raise UsageError(f"{self.name}: {where}: {first['msg']}") from None
        self._asked = self.config
        self._components: Components | None = None
        self._derived: Derived = {}
        self._rows: Float32 | None = None
        self.item_ids: NDArray | None = None

    # --- settings -----------------------------------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return all settings by name, as scikit-learn's estimators do."""
        return dict(self._asked)

    def set_params(self, **settings: Any) -> Self:
        """Change settings; the model has to be fitted again."""
        type(self).__init__(self, **(self._given() | settings))
        return self

    def clone(self) -> Self:
        """Return a model with the same settings that is not fitted."""
        return type(self)(**self._given())

    __sklearn_clone__ = clone

    def _given(self) -> dict[str, Any]:
        """Return the settings that were given, without defaults."""
        return {name: getattr(self._asked, name) for name in self._asked.model_fields_set}

    def __repr__(self) -> str:
        settings = ", ".join(f"{key}={value!r}" for key, value in self.config)
        return f"{type(self).__name__}({settings})"

    # --- learning -----------------------------------------------------------------------------

    def fit(
        self,
        user_items: UserItems,
        *,
        seed: int = 0,
        progress: Progress | bool | None = None,
        weighted: bool | str = False,
    ) -> Self:
        """Fit the model on all histories on this machine.

        A default rank is reduced to the size of the catalogue if necessary; a rank that was set and
        does not fit is refused.

        Parameters
        ----------
        user_items
            A sparse or dense matrix (rows users, columns items), Interactions, or a pandas or
            polars DataFrame with a row for each interaction.
        seed
            Seed of the start block of the singular vectors.
        progress
            True shows a bar; a function is called with the number of steps done and the total.
        weighted
            If true, each interaction counts by its weight: the value in the matrix, or the weight
            in Interactions. For a DataFrame, the name of the column of weights. Weights are above
            zero, and only their ratios matter here: they are divided by their mean. (In `recommend`
            doubling the weights doubles the scores and leaves the list unchanged.) If false, each
            interaction counts as one, and a DataWarning says so if values differ.
        """
        if weighted and self.takes_no_weights:
            raise UsageError(f"{self.name} takes no weights: {self.takes_no_weights}")
        train = relative(as_interactions(user_items, weighted))
        if not train.n_interactions:
            shape = f"{train.n_users} users and {train.n_items} items"
            raise UsageError(f"there is nothing to learn from: {shape}, and no interactions")
        self.config = self._fitting(train.n_items)
        with reporting(progress, f"{self.name}: singular vectors") as report:
            components = self._components_of(train, seed, report)
        origin = {"ledger": [], "promised": "Promised: nothing.", "gives_away": CENTRAL_MODEL}
        return self.use(replace(components, origin=origin), train.item_ids)

    def _fitting(self, n_items: int) -> Config:
        """Return the requested settings, with a default rank reduced to fit the catalogue."""
        usual = getattr(self._asked, "rank", 0)
        if "rank" in self._asked.model_fields_set or usual <= n_items:
            return self._asked
        return self._asked.model_copy(update={"rank": max(n_items, 1)})

    def partial_fit(self, user_items: UserItems, *, seed: int = 0) -> Self:
        """Add people who are not in the model yet; the result is that of a fit on all of them.

        Item-item matrices are sums over people, so a model that keeps its matrix needs no earlier
        histories. Others are refused (UsageError), and so are models of a federation. A person who
        was in the model already counts twice.

        Parameters
        ----------
        user_items
            Histories of the new people, in any form that `fit` accepts.
        seed
            As in `fit`.
        """
        if self._components is None:
            return self.fit(user_items, seed=seed)
        if (self._components.origin or {}).get("ledger") != [] or not self._adds_up:
            raise UsageError(
                f"{self.name} keeps no sums that more people can be added to: fit anew"
            )
        more = as_interactions(user_items)
        ours = np.arange(self.n_items) if self.item_ids is None else self.item_ids
        items = np.union1d(ours, more.item_ids)
        if items.dtype.kind != ours.dtype.kind:
            raise UsageError("numbers and names differ: give new people's items ids of this kind")
        self.config = self._fitting(len(items))
        components = with_people(
            self._components,
            np.searchsorted(items, ours),
            more.over(more.user_ids, items),
            rank=self.config.low_pass_rank,
            seed=seed,
        )
        return self.use(components, items)

    @property
    def _adds_up(self) -> bool:
        """True if the filters are sums over people and are kept."""
        return self.keeps_item_item and type(self)._components_of is Recommender._components_of

    def use(self, components: Components, item_ids: ArrayLike | None = None) -> Self:
        """Use filters that were computed elsewhere, for example by a federation.

        `item_ids` are the ids of the catalogue, in its order; without them items are numbers.
        """
        self._check_normalisation(components)
        ids = None if item_ids is None else as_ids(item_ids)
        if ids is not None and len(ids) != components.n_items:
            raise UsageError(f"{len(ids)} item ids for filters over {components.n_items} items")
        return self._take(components, self._derive(components), ids)

    def _take(
        self, components: Components, derived: Derived, item_ids: NDArray | None = None
    ) -> Self:
        self._prepare(components, derived)
        self._components = components if self.keeps_item_item else components.without_item_item()
        self._derived = derived
        self._rows = None
        self.item_ids = np.arange(components.n_items) if item_ids is None else item_ids
        return self

    def _check_normalisation(self, components: Components) -> None:
        if components.normalisation != self.config.normalisation:
            raise UsageError(
                f"{self.name} needs filters normalised with {self.config.normalisation}, "
                f"not with {components.normalisation}"
            )

    @property
    def components(self) -> Components:
        if self._components is None:
            raise UsageError(f"{self.name} has not been fitted")
        return self._components

    # --- methods that a model defines -----------------------------------------------------------

    def _components_of(
        self, train: Interactions, seed: int, progress: Progress | None
    ) -> Components:
        """Compute the filters that this model needs from all histories."""
        return centralized(
            train,
            rank=self.config.low_pass_rank,
            normalisation=self.config.normalisation,
            seed=seed,
            progress=progress,
        )

    def _derive(self, components: Components) -> Derived:
        """Return the arrays named in `derives`, which are too costly to recompute at loading."""
        return {}

    @abstractmethod
    def _prepare(self, components: Components, derived: Derived) -> None:
        """Prepare scoring, after refusing derived arrays that do not fit."""

    @abstractmethod
    def _score(self, histories: sp.csr_array) -> Float32:
        """Return the scores of every item: (users, items)."""

    def _parts(self, histories: sp.csr_array) -> Parts:
        """Return the scores in parts. If one part is of low rank, few scores are computed."""
        return Parts(self._score(histories))

    def _prepare_for(self, histories: int) -> None:
        """Prepare what `_parts` needs, if that pays for this number of histories."""

    @property
    def _numbers_a_history(self) -> int:
        """Numbers touched by products of the item-item matrix with the dense state of a history.

        It is 0 for a model without such states, for which filtering every item in advance never
        pays.
        """
        return 0

    # --- scoring ----------------------------------------------------------------------------------

    @property
    def n_items(self) -> int:
        return self.components.n_items

    def ready_for(self, histories: int, interactions: int) -> None:
        """Prepare for this number of histories and of interactions in the cheapest way.

        Scores of the possible ways differ by rounding; all later histories are scored the same way.
        """
        n_items = self.components.n_items
        each = self._numbers_a_history
        if self._rows is None and row_sums_pay(histories, interactions, n_items, each):
            self._rows = self._filtered_items()
        if self._rows is None:
            self._prepare_for(histories)

    def _filtered_items(self) -> Float32:
        """Return the scores of histories of one item each: (items, items)."""
        n_items = self.components.n_items
        alone = sp.csr_array(sp.eye_array(n_items, dtype=np.float32))
        rows = np.empty((n_items, n_items), np.float32)
        for start in range(0, n_items, USERS_AT_ONCE):
            rows[start : start + USERS_AT_ONCE] = self._score(alone[start : start + USERS_AT_ONCE])
        return rows

    def parts(self, user_items: sp.sparray) -> Parts:
        """Return the scores of every item for each history, in parts."""
        histories = rows_over(user_items, self.components.n_items)
        if self._rows is not None:
            return Parts(history_coordinates(histories, self._rows))
        return self._parts(histories)

    def score(self, user_items: sp.sparray) -> Float32:
        """Return the scores of every item for each history: (users, items)."""
        return self.parts(user_items).scores()

    # --- saving and loading -----------------------------------------------------------------------

    def save(
        self,
        folder: str | Path,
        manifest: dict[str, Any] | None = None,
        *,
        signing_key: Ed25519PrivateKey | None = None,
    ) -> Path:
        """Write `model.safetensors` and `manifest.json`, both or neither.

        The manifest says which sums the model comes from and what was promised; `manifest` adds to
        it, or replaces entries. Without one, a PrivacyWarning says if the model gives histories
        away: its files hold none directly, but an exact item-item matrix reveals them
        (`privirec audit --release FOLDER`). From now on this model scores from what was saved, so
        that it and a loaded copy agree to the last bit.
        """
        origin = self.components.origin or {}
        if manifest is None and (said := given_away(origin)):
            warn_of_data(f"{folder}: {said}", PrivacyWarning)
        record = {
            **origin,
            **(manifest or {}),
            "model": self.name,
            "config": self.config.model_dump(),
        }
        ids = np.arange(self.components.n_items) if self.item_ids is None else self.item_ids
        components = self.components.written_out()
        if components is not self.components:
            self._take(components, self._derived, ids)
        return artifact.write(Path(folder), components, ids, record, signing_key, self._derived)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        trusted_key: Ed25519PublicKey | None = None,
        mmap: bool = True,
        verify: bool = True,
    ) -> Self:
        """Load what `save` wrote (see `artifact.read`). Never executes code from the file.

        `Recommender.load` loads any model; `GFCF.load` and the others refuse other kinds.
        """
        saved = artifact.read(Path(folder), trusted_key, mmap=mmap, verify=verify)
        name, config = saved.manifest.get("model"), saved.manifest.get("config")
        kind = MODELS.get(name) if isinstance(name, str) else None
        if kind is None:
            raise ArtifactError(f"{folder}: unknown model {name!r}")
        if not issubclass(kind, cls):
            raise ArtifactError(
                f"{folder}: holds a model of {name}: load it with {kind.__name__}.load or "
                f"Recommender.load, not with {cls.__name__}.load"
            )
        try:
            model = kind(kind.config_type.model_validate(config))
            model._check_saved(saved.components, saved.derived)
            return model._take(saved.components, saved.derived, saved.item_ids)
        except ValidationError:
            raise ArtifactError(f"{folder}: not a config of {name}") from None
        except UsageError as error:
            raise ArtifactError(f"{folder}: {error}") from None

    def _check_saved(self, components: Components, derived: Derived) -> None:
        """Raise UsageError for arrays that this model would not have saved."""
        self._check_normalisation(components)
        found = {name: (array.dtype.str, array.ndim) for name, array in derived.items()}
        kept = not isinstance(components.item_item, NotKept)
        if found != self._kept_arrays(derived) or kept != self.keeps_item_item:
            raise UsageError(f"not the arrays that {self.name} keeps")

    def _kept_arrays(self, derived: Derived) -> dict[str, tuple[str, int]]:
        """Return the arrays that this version, or an earlier one, derives."""
        return self.derives


def given_away(origin: Mapping[str, Any]) -> str:
    """Return a sentence on what a model of this origin reveals; empty if noise protects it."""
    rows = origin.get("ledger")
    if not isinstance(rows, list):
        return "nobody said where its filters come from, so it may give histories away"
    sums = [row for row in rows if isinstance(row, dict) and row.get("entries")]
    if not sums:
        return f"{CENTRAL_MODEL.removeprefix('Warning: ')}; PrivateRecommender protects people"
    if all(row.get("loss") for row in sums):
        return ""
    if all(isinstance(row.get("noise"), dict) for row in sums):
        return "its noise comes from a seed: anybody who knows the seed can subtract it"
    return "made from exact sums, from which histories can be computed: privirec audit shows it"


def _describe(model: type, config: type[BaseModel]) -> None:
    """Give a model the signature of its config, and a section of parameters in its docstring."""
    fields = config.model_fields
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(name, keyword, default=field.default, annotation=field.annotation)
        for name, field in fields.items()
    ]
    model.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    own = inspect.cleandoc(model.__dict__.get("__doc__") or "").split(_HEADING, maxsplit=1)[0]
    lines = [own.strip(), "", *_HEADING.splitlines()] if fields else [own.strip()]
    for name, field in fields.items():
        lines.append(f"{name} : {_kind(field)}, default {field.default!r}")
        lines.extend(f"    {line}" for line in (field.description or "").splitlines())
    lines += ["", "Methods", "-------", *_METHODS]
    model.__doc__ = "\n".join(lines).strip() + "\n"


def _kind(field: FieldInfo) -> str:
    kind = field.annotation
    return kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")
