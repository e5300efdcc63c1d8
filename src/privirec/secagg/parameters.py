"""From a statement of trust to a graph degree k and a threshold t, by exact tail conditions.

A client's secrets are shared among its k neighbours in a random k-regular ring graph, any t of
whom can rebuild them. With n clients, c of them corrupt and d of them dropped, and T rounds:

- *private*: no honest client has t or more corrupt neighbours,
  n T P[Hyp(n - 1, c, k) >= t] <= 2^-security;
- *connected*: the honest survivors hang together, so only the sum of all of them can be opened:
  no k/2 consecutive places of the ring are all corrupt or dropped,
  n T P[all k/2 of them] <= 2^-security (a complete graph is always connected);
- *correct*: everybody keeps t neighbours, n P[k - Hyp(n - 1, d, k) < t] <= 2^-correctness.

All probabilities are ratios of integers, so nothing is rounded. The rounds do not enter the third
condition: the cohort is fixed by the first round, so there is one event and not T.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import comb

from privirec.secagg.errors import ParametersInfeasible

PPM = 1_000_000


@dataclass(frozen=True)
class Statement:
    """What is assumed of the clients and promised of the run."""

    clients: int
    """Clients that take part (n)."""
    corrupt_ppm: int
    """Share of clients that may work for the server, in millionths (gamma)."""
    dropped_ppm: int
    """Share of clients that may drop out, in millionths (delta)."""
    security_bits: int = 40
    correctness_bits: int = 30
    rounds: int = 1
    roster: int = 0
    """Clients of which the corrupt share is taken, if more than take part."""

    @classmethod
    def of(
        cls,
        clients: int,
        corrupt_share: float,
        dropped_share: float,
        *,
        security_bits: int = 40,
        correctness_bits: int = 30,
        rounds: int = 1,
    ) -> Statement:
        """The same with shares between 0 and 1; they are kept to the millionth."""
        return cls(
            clients,
            round(corrupt_share * PPM),
            round(dropped_share * PPM),
            security_bits,
            correctness_bits,
            rounds,
        )

    @property
    def corrupt(self) -> int:
        """Largest number of corrupt clients; a broken one counts as a whole.

        It is a share of the roster: whoever decides who takes part may leave out honest ones only.
        """
        return -(-max(self.roster, self.clients) * self.corrupt_ppm // PPM)

    @property
    def dropped(self) -> int:
        """Largest number of clients that may drop out."""
        return self.clients * self.dropped_ppm // PPM

    def with_clients(self, clients: int) -> Statement:
        """The same with so many of the clients taking part."""
        return replace(self, clients=clients, roster=max(self.roster, self.clients))


@dataclass(frozen=True)
class Parameters:
    """Degree of the graph and number of shares that rebuild a secret."""

    neighbours: int
    threshold: int


@lru_cache(maxsize=64)
def sparse_parameters(statement: Statement) -> Parameters:
    """Smallest even degree, and smallest threshold for it, that satisfy the statement.

    Falls back to the complete graph when no smaller one will do.
    """
    _check(statement)
    for degree in range(2, statement.clients - 1, 2):
        if is_connected(statement, degree):
            threshold = private_threshold(statement, degree)
            if threshold <= degree and is_correct(statement, degree, threshold):
                return Parameters(degree, threshold)
    return complete_parameters(statement)


@lru_cache(maxsize=64)
def complete_parameters(statement: Statement) -> Parameters:
    """Everybody is everybody's neighbour; if it can be had, no two secrets of a client are opened.

    A server that calls a client dropped to some and alive to others gets one share of either secret
    from each honest neighbour and both from the c corrupt ones: k + c in all, too few for two
    secrets if 2 t > k + c. Where so many are not certain to be left, t is the smallest that is
    private.
    """
    _check(statement)
    degree = statement.clients - 1
    threshold = private_threshold(statement, degree)
    steadfast = max(threshold, (degree + statement.corrupt) // 2 + 1)
    if steadfast <= degree and is_correct(statement, degree, steadfast):
        return Parameters(degree, steadfast)
    if threshold > degree or not is_correct(statement, degree, threshold):
        raise ParametersInfeasible(
            f"{statement.clients} clients are too few: with {statement.corrupt} corrupt and "
            f"{statement.dropped} dropped, more than {statement.corrupt} shares must be needed to "
            f"rebuild a secret and only {max(0, degree - statement.dropped)} are certain to be left"
        )
    return Parameters(degree, threshold)


def is_steadfast(statement: Statement, parameters: Parameters) -> bool:
    """Whether k + c shares, one from each and another from the corrupt ones, are too few for two
    secrets of one client."""
    return 2 * parameters.threshold > parameters.neighbours + statement.corrupt


def is_secure(statement: Statement, parameters: Parameters) -> bool:
    """Whether a graph and threshold chosen by somebody else are private and connected."""
    degree, threshold = parameters.neighbours, parameters.threshold
    return (
        0 < threshold <= degree < statement.clients
        and (degree % 2 == 0 or degree == statement.clients - 1)
        and is_connected(statement, degree)
        and threshold >= private_threshold(statement, degree)
    )


def is_connected(statement: Statement, degree: int) -> bool:
    """Whether k/2 consecutive places of the ring are all gone only with negligible probability."""
    if degree >= statement.clients - 1:
        return True
    gone = min(statement.clients, statement.corrupt + statement.dropped)
    return _negligible(
        comb(gone, degree // 2),
        comb(statement.clients, degree // 2),
        statement.clients * statement.rounds,
        statement.security_bits,
    )


@lru_cache(maxsize=4096)
def private_threshold(statement: Statement, degree: int) -> int:
    """Smallest threshold that no honest client's corrupt neighbours reach."""
    others = statement.clients - 1
    corrupt = min(others, statement.corrupt)
    total = comb(others, degree)
    tail = 0
    for count in range(min(corrupt, degree), -1, -1):
        tail += comb(corrupt, count) * comb(others - corrupt, degree - count)
        if not _negligible(
            tail, total, statement.clients * statement.rounds, statement.security_bits
        ):
            return count + 1
    return 1


def is_correct(statement: Statement, degree: int, threshold: int) -> bool:
    """Whether everybody keeps `threshold` neighbours but for negligible probability."""
    others = statement.clients - 1
    dropped = min(others, statement.dropped)
    # Fewer than t are left when more than k - t have gone.
    tail = sum(
        comb(dropped, count) * comb(others - dropped, degree - count)
        for count in range(degree - threshold + 1, min(dropped, degree) + 1)
    )
    return _negligible(tail, comb(others, degree), statement.clients, statement.correctness_bits)


def _negligible(favourable: int, total: int, trials: int, bits: int) -> bool:
    """Whether trials * favourable / total <= 2^-bits."""
    return (favourable * trials) << bits <= total


def _check(statement: Statement) -> None:
    if statement.clients < 2:
        raise ParametersInfeasible(f"{statement.clients} clients cannot hide behind each other")
    if min(statement.corrupt_ppm, statement.dropped_ppm) < 0:
        raise ParametersInfeasible("corrupt and dropped shares cannot be negative")
    if statement.corrupt_ppm + statement.dropped_ppm >= PPM:
        raise ParametersInfeasible("with all clients corrupt or dropped there is nobody to protect")
    if min(statement.security_bits, statement.correctness_bits, statement.rounds) < 1:
        raise ParametersInfeasible("security bits, correctness bits and rounds start at 1")
