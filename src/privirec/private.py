"""Recommenders with differential privacy, for histories that are in one place.

Whoever holds the histories adds all of the noise. The model that comes out can be published: it
tells nobody whether any person's history was in the data, up to epsilon and delta.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privirec.data.given import UserItems, as_interactions
from privirec.errors import UsageError
from privirec.federated.programs.protected import DEFAULT_DELTA, DEFAULT_EPSILON, Protected
from privirec.federated.randomness import ClientRandomness
from privirec.filters.eigen import Progress
from privirec.models.denoised import Denoised
from privirec.privacy.ledger import Ledger
from privirec.runtime.execute import execute_steps
from privirec.runtime.local.simulation import Simulation


class PrivateRecommender(Denoised):
    """A recommender that promises epsilon and delta to every person in the data.

    >>> model = PrivateRecommender(epsilon=1).fit(frame)             # doctest: +SKIP
    >>> model.epsilon_, model.delta_                                 # doctest: +SKIP

    The noise comes from the operating system's randomness. With a `seed` the fit can be repeated,
    and the promise is void: anybody who knows the seed can subtract the noise.

    Who is in the data is not hidden, nor how many they are. Protected is what each person's history
    says: all of it against none of it.

    Parameters
    ----------
    epsilon, delta
        The promise. A smaller epsilon promises more and adds more noise.
    way
        How item pairs are learned: `gram` sums their co-occurrences, `power` a low-rank basis,
        `auto` chooses by the number of people.
    seed
        For experiments only.
    settings
        Further settings of `Denoised`.
    """

    epsilon_: float
    """Epsilon of the fitted model; infinite if its noise came from a seed."""
    delta_: float
    ledger_: Ledger
    """The noisy sums that were computed, and what each costs."""
    takes_no_weights: ClassVar[str] = "one person's influence on a private model has a fixed bound"

    def __init__(
        self,
        epsilon: float = DEFAULT_EPSILON,
        delta: float = DEFAULT_DELTA,
        *,
        way: Literal["auto", "gram", "power"] = "auto",
        seed: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.promised = {"epsilon": epsilon, "delta": delta}
        self.way = way
        self.seed = seed
        self._program(1, 1)  # refuses what cannot be promised

    def __repr__(self) -> str:
        own = self.promised | {"way": self.way, "seed": self.seed}
        shown = own | dict(self.config.model_dump(exclude_defaults=True))
        own_call = f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in shown.items())})"
        return f"{own_call}  # {self.ledger_.promised}" if hasattr(self, "ledger_") else own_call

    def outlook(self, n_users: int, n_items: int) -> str:
        """Return a sentence on the accuracy to expect, which costs no privacy."""
        return self._program(n_users, n_items).outlook()

    def fit(
        self,
        user_items: UserItems,
        *,
        seed: int | None = None,
        progress: Progress | None = None,
        weighted: bool | str = False,
    ) -> Self:
        """Learn from histories on this machine, with noise.

        Parameters
        ----------
        user_items
            A sparse or dense matrix (rows users, columns items), Interactions, or a pandas or
            polars DataFrame with a row for each interaction.
        seed
            Refused: give it to the constructor, which says what it means.
        progress
            Called with the sums done and all sums.
        weighted
            Refused: an interaction counts once.
        """
        if seed is not None:
            raise UsageError("a seed voids the promise: PrivateRecommender(seed=...) says so")
        if weighted:
            raise UsageError(f"{self.name} takes no weights: {self.takes_no_weights}")
        train = as_interactions(user_items)
        if not train.n_interactions:
            raise UsageError("there is nothing to learn from: no interactions")
        program = self._program(train.n_users, train.n_items)
        randomness = (
            ClientRandomness.fresh()
            if self.seed is None
            else ClientRandomness.insecure(self.seed, 0)
        )
        ledger = Ledger(secret_noise=self.seed is None, delta=self.promised["delta"])
        total = len(program.sums())

        def report(_name: str) -> None:
            if progress is not None:
                progress(ledger.sums, total)

        simulation = Simulation(train, 1, randomness=randomness)
        components = execute_steps(program.steps(), simulation, ledger, report)
        self.use(simulation.with_factors(program, components), train.item_ids)
        self.ledger_, self.delta_ = ledger, ledger.delta
        self.epsilon_ = ledger.epsilon()
        return self

    def save(
        self,
        folder: str | Path,
        manifest: dict[str, Any] | None = None,
        *,
        signing_key: Ed25519PrivateKey | None = None,
    ) -> Path:
        """Write the model and its ledger, all or nothing. `Recommender.load` reads it."""
        run = self.promised | ({} if self.seed is None else {"seed": self.seed})
        record = {
            "run": {"method": Protected.name, **run},
            "ledger": self.ledger_.as_rows(),
            "promised": self.ledger_.promised,
            "gives_away": Protected.gives_away,
        }
        return super().save(folder, record | (manifest or {}), signing_key=signing_key)

    def _program(self, n_users: int, n_items: int) -> Protected:
        alone = {"clients": 1, "contributors": 1, "way": self.way}
        settings = Protected.settings_from(self.promised | alone, self.config.needs)
        return Protected(settings, n_users, n_items)
