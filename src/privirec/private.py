"""Recommenders with differential privacy, for histories that are in one place.

Whoever holds the histories adds all of the noise. The model that comes out can be published: it
tells nobody whether any person's history was in the data, up to epsilon and delta.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

from privirec.data.given import Progress, UserItems, as_interactions, joined, reporting
from privirec.data.interactions import Interactions
from privirec.errors import UsageError
from privirec.federated.programs.protected import DEFAULT_EPSILON, Protected
from privirec.models.denoised import Denoised
from privirec.privacy.ledger import Ledger
from privirec.runtime.execute import execute
from privirec.runtime.local.simulation import Simulation
from privirec.runtime.spec import Assumptions


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
        The promise. A smaller epsilon promises more and adds more noise. The default delta is at
        most 1e-6 and at most 1 / (10 n) for n people.
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
        delta: float | None = None,
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

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return all settings by name, as scikit-learn's estimators do."""
        return {**self.promised, "way": self.way, "seed": self.seed, **super().get_params(deep)}

    def _given(self) -> dict[str, Any]:
        return {**self.promised, "way": self.way, "seed": self.seed, **super()._given()}

    @property
    def _adds_up(self) -> bool:
        return False

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
        progress: Progress | bool | None = None,
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
            True shows a bar; a function is called with the sums done and all sums.
        weighted
            Refused: an interaction counts once.
        """
        if seed is not None:
            raise UsageError("a seed voids the promise: PrivateRecommender(seed=...) says so")
        if weighted:
            raise UsageError(f"{self.name} takes no weights: {self.takes_no_weights}")
        return self._learn(as_interactions(user_items), 1, progress)

    def federated_fit(
        self,
        clients: Sequence[UserItems] | UserItems,
        *,
        progress: Progress | bool | None = None,
    ) -> Self:
        """Learn as a federation would: each client adds its own part of the noise.

        The noise also covers 20 % of the clients dropping out and 5 % working for the server, so
        accuracy is lower than that of `fit`. All sums are computed in this process, which sees
        everything: this is for measuring before anybody sets up a federation.

        Parameters
        ----------
        clients
            A list with the histories that each client holds, in any form that `fit` takes.
            Anything else holds a client in each of its users. A person who is with two clients
            counts as two people.
        progress
            As in `fit`.
        """
        if isinstance(clients, list | tuple):
            train = joined([as_interactions(each) for each in clients])
            return self._learn(train, len(clients), progress)
        train = as_interactions(clients)
        return self._learn(train, train.n_users, progress)

    def _learn(self, train: Interactions, n_clients: int, progress: Progress | bool | None) -> Self:
        if not train.n_interactions:
            raise UsageError("there is nothing to learn from: no interactions")
        program = self._program(train.n_users, train.n_items, n_clients)
        total = len(program.expected_sums())
        # The noise of all clients at once: the same distribution in a fraction of the time.
        simulation = Simulation(train, n_clients, self.seed, noise_at_once=n_clients > 1)
        with reporting(progress, f"{self.name}: sums") as report:
            done = itertools.count()
            components, ledger = execute(
                program.steps(),
                simulation,
                lambda _name: report(next(done), total) if report else None,
                program.delta,
            )
        run = self.promised | {"delta": program.delta}
        if self.seed is not None:
            run["seed"] = self.seed
        origin = {
            **(components.origin or {}),
            "run": {"method": Protected.name, "clients": n_clients, **run},
            "gives_away": Protected.gives_away,
        }
        self.use(replace(components, origin=origin), train.item_ids)
        self.ledger_, self.delta_, self.epsilon_ = ledger, ledger.delta, ledger.epsilon()
        return self

    def _program(self, n_users: int, n_items: int, n_clients: int = 1) -> Protected:
        alone = n_clients == 1
        noise = {
            "clients": n_clients,
            "contributors": 1 if alone else Assumptions().contributors(n_clients),
            "corrupt": 0 if alone else Assumptions().corrupt(n_clients),
        }
        given = self.promised | noise | {"way": self.way}
        settings = Protected.settings_from(given, self.config.needs)
        return Protected(settings, n_users, n_items)
