"""From a statement of trust to a graph degree k and a threshold t, by exact tail conditions.

A client's secrets are shared among its k neighbours in a random k-regular ring graph, any t of
whom can rebuild them. With n clients, c of them corrupt and d of them dropped, and T rounds:

- *private*: no honest client has t or more corrupt neighbours,
  n T P[Hyp(n - 1, c, k) >= t] <= 2^-security;
- *connected*: the honest survivors hang together, so only the sum of all of them can be opened:
  no k/2 consecutive places of the ring are all corrupt or dropped,
  n T P[all k/2 of them] <= 2^-security (a complete graph is always connected);
- *correct*: everybody keeps t neighbours, n P[k - Hyp(n - 1, d, k) < t] <= 2^-correctness.

Against an *active* server, one that tells clients whatever suits it, connected gives way to more.
Of the k neighbours of an honest client at most c1 are corrupt, of the k/2 on one side of it at most
c2, but for 2^-security in as many graphs as the server can try:

- *steadfast*: 2 t > k + c1, so that no two stories are confirmed by one neighbourhood, and in the
  sparse graph t > k/2 + c2, so that a sum over a part of the ring cannot be cut out of it.

docs/secagg-wire.md proves what follows. All probabilities are ratios of integers, so nothing is
rounded. The rounds do not enter the condition of correctness: the cohort is fixed by the first
round, so there is one event and not T.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from math import comb

from privirec.secagg.errors import ParametersInfeasible

PPM = 1_000_000

GRINDING_BITS = 40
"""By how many bits the conditions on the graph are stricter against an active server. It sees the
keys of all honest clients before it settles on those of its own and on who takes part; every choice
is another random graph, and it may take the one that it likes best. 2^40 tries while clients wait
for the graph still leave a chance of 2^-security."""


class ServerModel(StrEnum):
    """What a server may do to learn more than the sum."""

    SEMI_HONEST = "semi-honest"
    """It keeps to the protocol and looks at all it sees."""
    ACTIVE = "active"
    """It says to each client whatever suits it."""

    def at_least(self, other: ServerModel) -> bool:
        """Whether what withstands this server withstands the other."""
        return self == ServerModel.ACTIVE or other == ServerModel.SEMI_HONEST


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
    server: ServerModel = ServerModel.SEMI_HONEST
    """What the server is taken to do."""

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
        server: ServerModel = ServerModel.SEMI_HONEST,
    ) -> Statement:
        """The same with shares between 0 and 1; they are kept to the millionth."""
        return cls(
            clients,
            round(corrupt_share * PPM),
            round(dropped_share * PPM),
            security_bits,
            correctness_bits,
            rounds,
            server=server,
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
        certain = certain_to_stay(statement, degree)
        if _is_active(statement):
            if certain <= degree // 2:
                continue  # no steadfast threshold is so low: save the search for it
            threshold = steadfast_threshold(statement, degree)
        elif is_connected(statement, degree):
            threshold = private_threshold(statement, degree)
        else:
            continue
        if threshold <= certain:
            return Parameters(degree, threshold)
    return complete_parameters(statement)


@lru_cache(maxsize=64)
def complete_parameters(statement: Statement) -> Parameters:
    """Everybody is everybody's neighbour; if it can be had, no two secrets of a client are opened.

    A server that calls a client dropped to some and alive to others gets one share of either secret
    from each honest neighbour and both from the c corrupt ones: k + c in all, too few for two
    secrets if 2 t > k + c. Where so many are not certain to be left, t is the smallest that is
    private, unless the server is an active one.
    """
    _check(statement)
    degree = statement.clients - 1
    certain = certain_to_stay(statement, degree)
    threshold = private_threshold(statement, degree)
    steadfast = steadfast_threshold(statement, degree)
    if steadfast <= certain:
        return Parameters(degree, steadfast)
    if _is_active(statement):
        raise ParametersInfeasible(
            f"{statement.clients} clients are too few against an active server: with "
            f"{statement.corrupt} corrupt and {statement.dropped} dropped, {steadfast} of {degree} "
            f"shares must be needed to rebuild a secret, and only {max(0, certain)} are certain to "
            "be left; lower the corrupt or the dropped share"
        )
    if threshold > certain:
        raise ParametersInfeasible(
            f"{statement.clients} clients are too few: with {statement.corrupt} corrupt and "
            f"{statement.dropped} dropped, more than {statement.corrupt} shares must be needed to "
            f"rebuild a secret and only {max(0, certain)} are certain to be left"
        )
    return Parameters(degree, threshold)


def is_steadfast(statement: Statement, parameters: Parameters) -> bool:
    """Whether k + c shares, one from each and another from the corrupt ones, are too few for two
    secrets of one client."""
    return 2 * parameters.threshold > parameters.neighbours + statement.corrupt


def is_secure(statement: Statement, parameters: Parameters) -> bool:
    """Whether a graph and threshold chosen by somebody else satisfy the statement, correctness
    aside."""
    degree, threshold = parameters.neighbours, parameters.threshold
    if not 0 < threshold <= degree < statement.clients:
        return False
    if degree % 2 and degree != statement.clients - 1:
        return False
    if _is_active(statement):
        return threshold >= steadfast_threshold(statement, degree)
    return is_connected(statement, degree) and threshold >= private_threshold(statement, degree)


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


def private_threshold(statement: Statement, degree: int) -> int:
    """Smallest threshold that no honest client's corrupt neighbours reach."""
    return most_corrupt(statement, degree, statement.clients) + 1


def steadfast_threshold(statement: Statement, degree: int) -> int:
    """Smallest threshold that withstands a server which tells clients different stories.

    It is above c1 as well, that is private: c1 <= k.
    """
    near = most_corrupt(statement, degree, statement.clients)
    threshold = (degree + near) // 2 + 1
    if degree < statement.clients - 1:
        half = degree // 2
        on_one_side = most_corrupt(statement, half, 2 * statement.clients)
        threshold = max(threshold, half + on_one_side + 1)
    return threshold


@lru_cache(maxsize=4096)
def most_corrupt(statement: Statement, places: int, trials: int) -> int:
    """Most corrupt clients among so many places of the graph, in any of so many trials, but for the
    stated probability."""
    bits = statement.security_bits + (GRINDING_BITS if _is_active(statement) else 0)
    others = statement.clients - 1
    return _most(others, statement.corrupt, places, trials * statement.rounds, bits)


def is_correct(statement: Statement, degree: int, threshold: int) -> bool:
    """Whether everybody keeps `threshold` neighbours but for negligible probability."""
    return threshold <= certain_to_stay(statement, degree)


def certain_to_stay(statement: Statement, degree: int) -> int:
    """Neighbours that everybody keeps but for negligible probability."""
    clients, others = statement.clients, statement.clients - 1
    return degree - _most(others, statement.dropped, degree, clients, statement.correctness_bits)


def least_honest(statement: Statement) -> int:
    """Fewest honest clients over which a sum can be opened, whatever a server of the stated kind
    says: all that neither dropped out nor are corrupt.

    One that keeps to the protocol opens the sum over everybody who has not dropped out, and an
    active one has no other choice: docs/secagg-wire.md, theorem (c).
    """
    return max(0, statement.clients - statement.dropped - statement.corrupt)


def _is_active(statement: Statement) -> bool:
    return statement.server == ServerModel.ACTIVE


def _most(population: int, marked: int, drawn: int, trials: int, bits: int) -> int:
    """Smallest number that the marked ones among those drawn exceed with no more than 2^-bits in so
    many trials."""
    marked = min(population, marked)
    count = min(marked, drawn)
    total = comb(population, drawn)
    unmarked = population - marked
    ways = comb(marked, count) * comb(unmarked, drawn - count)
    tail = ways
    while _negligible(tail, total, trials, bits):
        # Ways to draw one marked less: the quotient is exact.
        ways = (
            ways
            * (count * (unmarked - drawn + count))
            // ((marked - count + 1) * (drawn - count + 1))
        )
        count -= 1
        tail += ways
    return count


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
