"""The meaning of epsilon in plain words: one sentence, wherever a promise is shown.

Somebody holds everything that was released and knows all other histories. Whether one person's
history was used is decided by a coin, and this observer guesses. Behind noise of level mu no guess
is right more often than with probability Phi(mu / 2), plus `Loss.gap` for noise in whole numbers
(Dong, Roth and Su 2022). Figures are rounded up, so no sentence promises too much.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Context, Decimal, localcontext

from privirec.federated.dp import normal
from privirec.federated.dp.gaussian import LARGEST_EPSILON, LEAST_EPSILON, mu_of
from privirec.federated.dp.loss import Loss

NOTHING = "Promised: nothing."
SIMULATED = (
    f"{NOTHING} This is a simulation: the noise was drawn from a seed, so anybody who knows "
    "the seed can subtract it."
)


def right_guesses(loss: Loss) -> int:
    """Return how many of 100 guesses are right at most, rounded up."""
    if loss.mu <= 0 and loss.gap <= 0:
        return 50
    if math.isinf(loss.mu):
        return 100
    with localcontext(normal.CONTEXT):
        share = normal.raised(normal.cdf(Decimal(loss.mu) / 2)) + Decimal(loss.gap)
        return min(100, math.ceil(100 * share))


def worth(loss: Loss, whose: str = "a person's") -> str:
    """Return the sentence that says what a promise is worth to a person."""
    return (
        f"Somebody who knows everything else and guesses whether {whose} history was used is right "
        f"in at most {right_guesses(loss)} of 100 cases; a coin is right in 50."
    )


def loss_of(epsilon: float, delta: float) -> Loss:
    """Return the largest loss of Gaussian noise in whole numbers behind an (epsilon, delta)."""
    if epsilon > LARGEST_EPSILON:
        return Loss(math.inf)
    return Loss(mu_of(max(epsilon, LEAST_EPSILON), delta), delta)


def promise(epsilon: float, delta: float, replacing: float | None = None) -> str:
    """Return a promise in figures and in plain words.

    `replacing` is epsilon for replacing one history by another, if it is known. If not, the figure
    that holds for any sum is shown.
    """
    loss = loss_of(epsilon, delta)
    second = loss.epsilon_replacing(delta) if replacing is None else replacing
    return f"{figures(epsilon, delta, second)}. {worth(loss)}"


def simulated(epsilon: float, delta: float, replacing: float | None = None) -> str:
    """Return sentences for noise from a seed, which promises nothing."""
    return (
        f"{SIMULATED} If every client draws its own noise, the same settings promise "
        f"{promise(epsilon, delta, replacing)}"
    )


def figures(epsilon: float, delta: float, replacing: float) -> str:
    """Return both figures of a promise: all of a history against none, and one against another."""
    second = f"{at_least(replacing)}" if math.isfinite(replacing) else "no bound"
    return (
        f"epsilon {at_least(epsilon)} at delta {at_least(delta)} "
        f"({second} for replacing one history by another)"
    )


def at_least(value: float, digits: int = 3) -> str:
    """Return a figure rounded up to this many significant digits."""
    rounded = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(value)
    return f"{float(rounded):.{digits}g}"
