"""Graph degree k and threshold t from the stated assumptions, by exact tail conditions.

The secrets of a client are shared among its k neighbours in a random k-regular ring graph. Any t of
them can rebuild the secrets. For n clients, c of them corrupt and d of them dropped, and T rounds:

- *private*: no honest client has t or more corrupt neighbours,
  n T P[Hyp(n - 1, c, k) >= t] <= 2^-security;
- *connected*: the honest survivors form a connected graph, so that only the sum of all of them can
  be opened: no k/2 consecutive places of the ring are all corrupt or dropped,
  n T P[all k/2 of them] <= 2^-security (a complete graph is always connected);
- *correct*: every client keeps t neighbours, n P[k - Hyp(n - 1, d, k) < t] <= 2^-correctness.

Against an *active* server, which may send different messages to different clients, a stronger
condition replaces *connected*. At most c1 of the k neighbours of an honest client are corrupt, and
at most c2 of the k/2 on either side of it, except with probability 2^-security over as many graphs
as the server can try:

- *steadfast*: 2 t > k + c1, so that one neighbourhood cannot confirm two different lists of
  survivors; in the sparse graph also t > k/2 + c2, so that the server cannot open a sum over a part
  of the ring.

A few clients cannot be steadfast if one of them may be missing. The complete graph then needs

- *unanimous*: two lists of survivors, each signed by all clients in it, have an honest client in
  common, so that all who open a sum open the same one; and t > c. This is counting, without any
  chance: 2 s > n + c, where s is the least number of survivors.

docs/reference/secagg-wire.md proves the consequences. All probabilities are ratios of integers, so
nothing is rounded. The number of rounds does not enter the condition of correctness: the first
round fixes the cohort, so there is one event and not T.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from itertools import islice, repeat
from math import comb

from privirec.secagg.errors import ParametersInfeasible

PPM = 1_000_000
_GUARD_BITS = 128
"""Additional bits of probabilities that are kept as bounds."""

GRINDING_BITS = 40
"""Extra bits of security that the conditions on the graph require against an active server.

The server sees the keys of all honest clients before it commits to the keys of corrupt clients and
to the list of participants. Each choice gives another random graph, and the server can keep the one
it prefers. Even with 2^40 tries while the clients wait for the graph, it succeeds with probability
at most 2^-security.
"""


class ServerModel(StrEnum):
    """Ability of the server to deviate from the protocol in order to learn more than the sum."""

    SEMI_HONEST = "semi-honest"
    """The server follows the protocol but analyses everything it sees."""
    ACTIVE = "active"
    """The server may send arbitrary messages, different ones to different clients."""

    def at_least(self, other: ServerModel) -> bool:
        """Return True if a protocol that is secure against this model is secure against `other`."""
        return self == ServerModel.ACTIVE or other == ServerModel.SEMI_HONEST


@dataclass(frozen=True)
class Statement:
    """Assumptions about the clients and guarantees of the run."""

    clients: int
    """Number of clients that take part (n)."""
    corrupt_ppm: int
    """Maximum share of clients that collude with the server, in millionths (gamma)."""
    dropped_ppm: int
    """Maximum share of clients that drop out, in millionths (delta)."""
    security_bits: int = 40
    correctness_bits: int = 30
    rounds: int = 1
    roster: int = 0
    """Number of clients to which `corrupt_ppm` refers, if larger than `clients`."""
    server: ServerModel = ServerModel.SEMI_HONEST
    """Assumed behaviour of the server."""

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
        """Return a statement from shares between 0 and 1, rounded to millionths."""
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
        """Maximum number of corrupt clients, rounded up.

        It is a share of the roster, because the server decides who takes part and may exclude
        honest clients only.
        """
        return -(-max(self.roster, self.clients) * self.corrupt_ppm // PPM)

    @property
    def failure(self) -> Fraction:
        """Probability that the sums show more than they should, however the server behaves.

        Two conditions on the graph fail with probability at most 2^-security_bits each: *private*
        and *connected*, or the two parts of *steadfast*.
        """
        return Fraction(2, 1 << self.security_bits)

    @property
    def dropped(self) -> int:
        """Maximum number of clients that may drop out, rounded down."""
        return self.clients * self.dropped_ppm // PPM

    @property
    def fewest_in_sum(self) -> int:
        """Fewest clients in a sum: of the roster some may be absent, of the others some drop out.

        This is the minimum over all numbers of clients that may take part.
        """
        everybody = self.with_clients(max(self.roster, self.clients))
        come = self.with_clients(everybody.clients - everybody.dropped)
        return come.clients - come.dropped

    def with_clients(self, clients: int) -> Statement:
        """Return a copy with `clients` participants; the corrupt share refers to the roster."""
        return replace(self, clients=clients, roster=max(self.roster, self.clients))


@dataclass(frozen=True)
class Parameters:
    """Degree of the graph and number of shares that rebuild a secret."""

    neighbours: int
    threshold: int


@lru_cache(maxsize=64)
def sparse_parameters(statement: Statement) -> Parameters:
    """Return the smallest even degree, with its smallest threshold, that satisfies the statement.

    Fall back to the complete graph if no smaller degree satisfies it.
    """
    _check(statement)
    clients, others = statement.clients, statement.clients - 1
    gone = _most_of_each(others, statement.dropped, clients, statement.correctness_bits)
    near = _most_corrupt_of_each(statement, clients)
    side = _most_corrupt_of_each(statement, 2 * clients)
    connected = 0 if _is_active(statement) else least_connected_degree(statement)
    by_degree = zip(
        range(2, others, 2),
        islice(gone, 2, None, 2),
        islice(near, 2, None, 2),
        islice(side, 1, None) if _is_active(statement) else repeat(0),
        strict=False,
    )
    for degree, dropped, corrupt, on_one_side in by_degree:
        if _is_active(statement):
            threshold = _steadfast(degree, corrupt, on_one_side)
        elif degree >= connected:
            threshold = corrupt + 1
        else:
            continue
        if threshold <= degree - dropped:
            return Parameters(degree, threshold)
    return complete_parameters(statement)


def least_connected_degree(statement: Statement) -> int:
    """Return the smallest even degree with connected survivors; see `is_connected`.

    Return the degree of the complete graph if no smaller one suffices. The probability that they
    are not connected falls as the degree grows, so bisection finds it.
    """
    enough = 2
    while not is_connected(statement, enough):
        enough *= 2
    degrees = range(2, enough + 1, 2)
    place = bisect_left(degrees, True, key=lambda degree: is_connected(statement, degree))
    return min(degrees[place], statement.clients - 1)


@lru_cache(maxsize=64)
def complete_parameters(statement: Statement) -> Parameters:
    """Return the parameters of the complete graph, with a steadfast threshold if possible.

    A server may report a client as dropped to some neighbours and as alive to others. It then gets
    one share of either secret from each honest neighbour and shares of both from each of the c
    corrupt ones: k + c shares in all, too few for two secrets if 2 t > k + c.

    If not enough neighbours are certain to stay for such a t and the server is active, use all that
    are certain, if lists of survivors are unanimous; otherwise raise ParametersInfeasible. If the
    server is semi-honest, use the smallest private threshold.
    """
    _check(statement)
    degree = statement.clients - 1
    certain = certain_to_stay(statement, degree)
    threshold = private_threshold(statement, degree)
    steadfast = steadfast_threshold(statement, degree)
    if steadfast <= certain:
        return Parameters(degree, steadfast)
    if _is_active(statement):
        if is_unanimous(statement) and threshold <= certain:
            return Parameters(degree, certain)
        raise ParametersInfeasible(
            f"{statement.clients} clients are too few against an active server if "
            f"{statement.corrupt} may be corrupt and {statement.dropped} missing: "
            "lower the corrupt or the dropped share"
        )
    if threshold > certain:
        raise ParametersInfeasible(
            f"{statement.clients} clients are too few: with {statement.corrupt} corrupt and "
            f"{statement.dropped} dropped, a secret must take more than {statement.corrupt} shares "
            f"to rebuild, but only {max(0, certain)} are certain to remain"
        )
    return Parameters(degree, threshold)


def is_unanimous(statement: Statement) -> bool:
    """Return True if any two lists of survivors that clients accept share an honest client.

    Honest clients sign one list each, and open nothing before all clients in it have signed. Two
    lists without a common honest client would take 2 s - c clients that are not corrupt, where s is
    the fewest clients in a sum, and the roster has n - c.
    """
    roster = max(statement.roster, statement.clients)
    return 2 * statement.fewest_in_sum > roster + statement.corrupt


def most_missing(
    clients: int, corrupt: int, server: ServerModel = ServerModel.ACTIVE
) -> int | None:
    """Return how many clients of a roster may be missing if so many may be corrupt.

    Count in the complete graph; return None if not even all clients together are enough.
    """
    # A corrupt client counts as a whole and a missing one does not; see `Statement`.
    bad = corrupt * PPM // clients
    for missing in range(clients - 1 - corrupt, -1, -1):
        try:
            complete_parameters(Statement(clients, bad, share_of(missing, clients), server=server))
        except ParametersInfeasible:
            continue
        return missing
    return None


def share_of(missing: int, clients: int) -> int:
    """Return the smallest share, in millionths, with which so many clients may be missing."""
    return -(-missing * PPM // clients)


def is_steadfast(statement: Statement, parameters: Parameters) -> bool:
    """Return True if k + c shares of one client are too few to rebuild both its secrets.

    The server can get one share from each neighbour and a second one from each corrupt neighbour.
    """
    return 2 * parameters.threshold > parameters.neighbours + statement.corrupt


def is_secure(statement: Statement, parameters: Parameters) -> bool:
    """Return True if graph and threshold satisfy the statement, except for correctness."""
    degree, threshold = parameters.neighbours, parameters.threshold
    if not 0 < threshold <= degree < statement.clients:
        return False
    if degree % 2 and degree != statement.clients - 1:
        return False
    if _is_active(statement):
        in_ring = degree < statement.clients - 1
        counted = not in_ring and is_unanimous(statement) and threshold > statement.corrupt
        return counted or threshold >= steadfast_threshold(statement, degree)
    return is_connected(statement, degree) and threshold >= private_threshold(statement, degree)


def is_connected(statement: Statement, degree: int) -> bool:
    """Return True if the honest survivors are connected, except with probability 2^-security.

    The graph is disconnected only if k/2 consecutive places of the ring are corrupt or dropped.
    """
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
    """Return the smallest threshold that exceeds the corrupt neighbours of every honest client."""
    return most_corrupt(statement, degree, statement.clients) + 1


def steadfast_threshold(statement: Statement, degree: int) -> int:
    """Return the smallest threshold that is safe if a server sends clients different messages.

    It also exceeds c1 and is therefore private, because c1 <= k.
    """
    near = most_corrupt(statement, degree, statement.clients)
    in_ring = degree < statement.clients - 1
    on_one_side = most_corrupt(statement, degree // 2, 2 * statement.clients) if in_ring else 0
    return _steadfast(degree, near, on_one_side)


def _steadfast(degree: int, near: int, on_one_side: int) -> int:
    """Return the smallest t with 2 t > k + c1 and t > k/2 + c2."""
    return max((degree + near) // 2, degree // 2 + on_one_side) + 1


@lru_cache(maxsize=4096)
def most_corrupt(statement: Statement, places: int, trials: int) -> int:
    """Return the maximum number of corrupt clients among `places` places of the graph.

    The maximum is exceeded in one of `trials` trials per round with probability at most
    2^-security_bits, or 2^-(security_bits + GRINDING_BITS) against an active server.
    """
    return _most(statement.clients - 1, statement.corrupt, places, *_odds(statement, trials))


def _most_corrupt_of_each(statement: Statement, trials: int) -> Iterator[int]:
    """Yield `most_corrupt` among 0, 1, 2, ... places."""
    return _most_of_each(statement.clients - 1, statement.corrupt, *_odds(statement, trials))


def _odds(statement: Statement, trials: int) -> tuple[int, int]:
    """Return the number of trials in all rounds, and the bits of security against one of them."""
    grinding = GRINDING_BITS if _is_active(statement) else 0
    return trials * statement.rounds, statement.security_bits + grinding


def is_correct(statement: Statement, degree: int, threshold: int) -> bool:
    """Return True if every client keeps `threshold` neighbours.

    This fails with probability at most 2^-correctness.
    """
    return threshold <= certain_to_stay(statement, degree)


def certain_to_stay(statement: Statement, degree: int) -> int:
    """Return the number of neighbours that every client keeps.

    This fails with probability at most 2^-correctness.
    """
    clients, others = statement.clients, statement.clients - 1
    return degree - _most(others, statement.dropped, degree, clients, statement.correctness_bits)


def least_honest(statement: Statement) -> int:
    """Return the minimum number of honest clients in a sum that the server can open.

    These are all clients that are neither dropped nor corrupt. A semi-honest server opens the sum
    over all clients that have not dropped out. An active server cannot open a sum over fewer; see
    docs/reference/secagg-wire.md, theorem (c).
    """
    return max(0, statement.clients - statement.dropped - statement.corrupt)


def _is_active(statement: Statement) -> bool:
    return statement.server == ServerModel.ACTIVE


def _most(population: int, marked: int, drawn: int, trials: int, bits: int) -> int:
    """Return the least m that the marked items drawn exceed with probability <= 2^-bits.

    This is the probability over all `trials` trials together (union bound).
    """
    marked = min(population, marked)
    count = min(marked, drawn)
    total = comb(population, drawn)
    unmarked = population - marked
    ways = comb(marked, count) * comb(unmarked, drawn - count)
    tail = ways
    while _negligible(tail, total, trials, bits):
        # Number of ways to draw one marked item less; the division is exact.
        ways = (
            ways
            * (count * (unmarked - drawn + count))
            // ((marked - count + 1) * (drawn - count + 1))
        )
        count -= 1
        tail += ways
    return count


def _most_of_each(population: int, marked: int, trials: int, bits: int) -> Iterator[int]:
    """Yield `_most` for 0, 1, 2, ... items drawn, each from the one before.

    One more item drawn raises the result m by at most one. Let X be the number of marked items
    among d drawn, p = P[X = m] and t = P[X > m]. Drawing another item adds p (marked - m) /
    (population - d) to t. Both are kept as lower and upper bounds in units of 2^-places. Where the
    bounds do not decide, `_most` does.
    """
    marked = min(population, marked)
    unmarked = population - marked
    places = bits + trials.bit_length() + population.bit_length() + _GUARD_BITS
    limit = (1 << places - bits) // trials
    most = tail_low = tail_high = 0
    chance_low = chance_high = 1 << places
    yield most
    for drawn in range(population):
        ways, left = marked - most, population - drawn
        tail_low += chance_low * ways // left
        tail_high -= -chance_high * ways // left
        fits = tail_high <= limit
        if not fits and tail_low <= limit:
            fits = _most(population, marked, drawn + 1, trials, bits) == most
        if fits:
            above = (unmarked - drawn + most) * (drawn + 1)
            below = (drawn - most + 1) * left
        else:
            most += 1
            above, below = ways * (drawn + 1), most * left
        chance_low = chance_low * above // below
        chance_high = -(-chance_high * above // below)
        if not fits:
            tail_low, tail_high = max(0, tail_low - chance_high), tail_high - chance_low
        yield most


def _negligible(favourable: int, total: int, trials: int, bits: int) -> bool:
    """Return True if trials * favourable / total <= 2^-bits."""
    return (favourable * trials) << bits <= total


def _check(statement: Statement) -> None:
    if statement.clients < 2:
        raise ParametersInfeasible(f"at least 2 clients are needed, not {statement.clients}")
    if min(statement.corrupt_ppm, statement.dropped_ppm) < 0:
        raise ParametersInfeasible("corrupt and dropped shares cannot be negative")
    if statement.corrupt_ppm + statement.dropped_ppm >= PPM:
        raise ParametersInfeasible("with all clients corrupt or dropped there is nobody to protect")
    if min(statement.security_bits, statement.correctness_bits, statement.rounds) < 1:
        raise ParametersInfeasible("security bits, correctness bits and rounds start at 1")
