"""Tests of the algebra of LightSecAgg: the field, entries in elements, coded pieces of masks."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from privirec.extra.lightsecagg.code import Decoder, MaskCode
from privirec.extra.lightsecagg.field import MOST_BITS, ROOT_BITS, ElementShape, Field
from privirec.extra.lightsecagg.thresholds import Thresholds, graph_parameters, thresholds
from privirec.secagg.errors import BadShare, MalformedMessage, ParametersInfeasible
from privirec.secagg.parameters import Parameters, Statement
from privirec.secagg.ring import VectorShape

SEED = bytes(range(32))
BITS = (31, 32, 33, 48, 60, 61)


class SmallField(Field):
    """Integers modulo 17, whose 16th roots of unity are all numbers except zero."""

    prime = 17

    def __init__(self) -> None:
        super().__init__(4)


def key_stream(seed: bytes, place: int) -> int:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    counter, skip = divmod(8 * place, 16)
    stream = Cipher(algorithms.AES256(seed), modes.CTR(counter.to_bytes(16, "big"))).encryptor()
    return int.from_bytes(stream.update(bytes(32))[skip : skip + 8], "little")


def modular_rank(rows: list[list[int]], prime: int) -> int:
    rows, rank = [list(row) for row in rows], 0
    for column in range(len(rows[0])):
        pivot = next((r for r in range(rank, len(rows)) if rows[r][column] % prime), None)
        if pivot is None:
            continue
        rows[rank], rows[pivot] = rows[pivot], rows[rank]
        inverse = pow(rows[rank][column], -1, prime)
        for other in range(rank + 1, len(rows)):
            factor = rows[other][column] * inverse % prime
            rows[other] = [
                (a - factor * b) % prime for a, b in zip(rows[other], rows[rank], strict=True)
            ]
        rank += 1
    return rank


# --- the field ------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", range(31, MOST_BITS + 1))
def test_a_prime_just_above_with_many_roots(bits: int) -> None:
    """Test primality by Lucas: a generator has the order p - 1 for all prime factors of p - 1."""
    field = Field(bits)
    prime = field.prime
    assert 1 << bits < prime < 1 << (bits + 1)
    assert prime % (1 << ROOT_BITS) == 1
    assert field.ring.width == bits + 1
    factors, left = {2}, (prime - 1) >> ROOT_BITS
    divisor = 2
    while divisor * divisor <= left and divisor < 1 << 21:
        while left % divisor == 0:
            factors.add(divisor)
            left //= divisor
        divisor += 1
    factors |= {left} - {1}
    assert any(
        pow(base, prime - 1, prime) == 1
        and all(pow(base, (prime - 1) // factor, prime) != 1 for factor in factors)
        for base in range(2, 100)
    )
    for order in (1, 2, 8, 1 << ROOT_BITS):
        root = field.root(order)
        assert pow(root, order, prime) == 1
        assert order == 1 or pow(root, order // 2, prime) == prime - 1


@pytest.mark.parametrize("bits", BITS)
def test_elements_are_drawn_as_specified(bits: int) -> None:
    """Test by exact arithmetic on single words; at 61 bits every eighth word is left out."""
    field, period = Field(bits), 1003
    drawn = field.uniform(SEED, 990, 13, period).tolist()
    passed_over = 0
    for place, element in enumerate(drawn, start=990):
        for turn in itertools.count():
            scaled = key_stream(SEED, place + turn * period) * field.prime
            if scaled % (1 << 64) >= (1 << 64) % field.prime:
                assert element == scaled >> 64
                break
            passed_over += 1
    whole = field.uniform(SEED, 0, period, period)
    assert whole[990:].tolist() == drawn
    assert int(whole.max()) < field.prime
    if bits == 61:
        assert passed_over


def test_elements_are_uniform() -> None:
    field = SmallField()
    drawn = field.uniform(SEED, 0, 17 * 5000, 10**6)
    assert chisquare(np.bincount(drawn.astype(int), minlength=17)).pvalue > 1e-6
    wide = Field(61)
    cells = wide.uniform(SEED, 0, 10**5, 10**5) // np.uint64(-(-wide.prime // 64))
    assert chisquare(np.bincount(cells.astype(int), minlength=64)).pvalue > 1e-6


def test_elements_that_are_not_below_the_prime_are_malformed() -> None:
    field = Field(32)
    good = np.array([0, 5, field.prime - 1], np.uint64)
    assert field.unpack(field.pack(good), 3).tolist() == good.tolist()
    with pytest.raises(MalformedMessage, match="below the prime"):
        field.unpack(field.pack(good + np.uint64(1)), 3)
    with pytest.raises(MalformedMessage, match="take 13 bytes"):
        field.unpack(field.pack(good)[:-1], 3)


# --- entries in elements --------------------------------------------------------------------------


@settings(max_examples=200)
@given(st.integers(1, MOST_BITS), st.booleans(), st.integers(1, 6), st.data())
def test_sums_of_elements_are_sums_of_entries(
    width: int, signed: bool, clients: int, data: st.DataObject
) -> None:
    """Test at the bound on both sides, where a carry between entries would show."""
    most = 2 ** (width - signed) - 1
    each = most // clients
    if not each:
        clients, each = 1, most or 1
        if not most:
            return  # one bit with a sign holds nothing
    length = data.draw(st.integers(1, 70))
    entry = st.integers(-each if signed else 0, each) | st.just(each)
    if signed:
        entry |= st.just(-each)
    vectors = [data.draw(st.lists(entry, min_size=length, max_size=length)) for _ in range(clients)]
    shape = ElementShape(VectorShape(length, width, each, signed))
    assert shape.per_element * width <= shape.field.bits <= MOST_BITS
    total = np.zeros(shape.length, shape.carried.ring.dtype)
    for vector in vectors:
        words = shape.entries.ring.encode(
            np.array(vector, np.int64 if signed else np.uint64), each, signed
        )
        shape.field.add(total, shape.join(words))
    shape.check_bound(total)
    opened = shape.split(total, length)
    assert opened.dtype == shape.entries.ring.dtype
    values = shape.entries.ring.decode_signed(opened) if signed else opened
    assert values.tolist() == [sum(column) for column in zip(*vectors, strict=True)]


def test_a_sum_beyond_its_bound_is_noticed_where_it_can_be() -> None:
    shape = ElementShape(VectorShape(4, 32, 5))
    assert shape.per_element == 1
    shape.check_bound(np.array([0, (1 << 32) - 1], np.uint64))
    with pytest.raises(BadShare, match="bound"):
        shape.check_bound(np.array([0, 1 << 32], np.uint64))


def test_entries_that_are_too_wide_are_refused() -> None:
    assert ElementShape(VectorShape(4, 61, 5)).per_element == 1
    with pytest.raises(ParametersInfeasible, match="62 bits: this protocol carries at most 61"):
        ElementShape(VectorShape(4, 62, 5))


# --- the code -------------------------------------------------------------------------------------


@st.composite
def codes(draw: st.DrawFn) -> MaskCode:
    roster = draw(st.integers(2, 40))
    clients = draw(st.integers(2, roster))
    needed = draw(st.integers(2, clients))
    private = draw(st.integers(1, needed - 1))
    field = Field(draw(st.sampled_from(BITS)))
    return MaskCode(field, roster, Thresholds(clients, private, needed), draw(st.integers(1, 90)))


def coefficients(code: MaskCode, seed: bytes) -> list[list[int]]:
    """Return one list per column, by the specification."""
    rule, columns = code.thresholds, code.columns
    drawn = code.field.uniform(seed, 0, columns * rule.needed, columns * rule.needed).tolist()
    noise = drawn[columns * rule.payload :]
    return [
        drawn[column * rule.payload : (column + 1) * rule.payload]
        + noise[column * rule.private : (column + 1) * rule.private]
        for column in range(columns)
    ]


@settings(max_examples=60)
@given(codes(), st.data())
def test_pieces_are_values_of_polynomials(code: MaskCode, data: st.DataObject) -> None:
    places = data.draw(
        st.lists(st.integers(0, code.roster - 1), min_size=1, max_size=5, unique=True)
    )
    prime, root = code.field.prime, code.field.root(code.points)
    pieces = code.encode(SEED, places)
    for row, place in zip(pieces.tolist(), places, strict=True):
        point = pow(root, place, prime)
        assert row == [
            sum(value * pow(point, power, prime) for power, value in enumerate(column)) % prime
            for column in coefficients(code, SEED)
        ]


@settings(max_examples=80)
@given(codes(), st.integers(1, 5), st.data())
def test_any_pieces_of_a_sum_that_are_enough_open_it(
    code: MaskCode, masks: int, data: st.DataObject
) -> None:
    everywhere = list(range(code.roster))
    total = np.zeros((code.roster, code.columns), np.uint64)
    expected = np.zeros(code.elements, np.uint64)
    for number in range(masks):
        seed = bytes([number]) * 32
        for row, piece in zip(total, code.encode(seed, everywhere), strict=True):
            code.field.add(row, piece)
        code.field.add(expected, code.mask(seed, 0, code.elements))
    answering = data.draw(
        st.lists(
            st.sampled_from(everywhere),
            min_size=code.thresholds.needed,
            max_size=code.roster,
            unique=True,
        ).map(sorted)
    )
    opened = Decoder(code, answering).decode(total[answering])
    assert opened[: code.elements].tolist() == expected.tolist()
    assert len(opened) == code.columns * code.thresholds.payload


@settings(max_examples=40)
@given(codes(), st.data())
def test_a_wrong_answer_shows_where_there_is_one_more(code: MaskCode, data: st.DataObject) -> None:
    if code.roster == code.thresholds.needed:
        return
    pieces = code.encode(SEED, range(code.roster))
    wrong = data.draw(st.integers(0, code.roster - 1))
    column = data.draw(st.integers(0, code.columns - 1))
    shift = data.draw(st.integers(1, code.field.prime - 1))
    code.field.add(pieces[wrong, column : column + 1], np.array([shift], np.uint64))
    with pytest.raises(BadShare, match="not the sum of the pieces"):
        Decoder(code, range(code.roster)).decode(pieces)


@settings(max_examples=60)
@given(codes(), st.data())
def test_pieces_that_are_too_few_say_nothing(code: MaskCode, data: st.DataObject) -> None:
    """Test that any T rows of the random part have full rank: their values are uniform for any
    mask."""
    rule, prime = code.thresholds, code.field.prime
    root = code.field.root(code.points)
    held = data.draw(
        st.lists(
            st.integers(0, code.roster - 1),
            min_size=rule.private,
            max_size=rule.private,
            unique=True,
        )
    )
    noise = [
        [pow(root, place * power, prime) for power in range(rule.payload, rule.needed)]
        for place in held
    ]
    assert modular_rank(noise, prime) == rule.private


@pytest.mark.parametrize(("private", "needed"), [(1, 2), (2, 3), (2, 4)])
def test_pieces_that_are_too_few_say_nothing_statistically(private: int, needed: int) -> None:
    """Test modulo 17: an element of the mask and T pieces take all values equally often."""
    columns = 200 * 17 ** (private + 1) // 17
    code = MaskCode(SmallField(), 6, Thresholds(6, private, needed), columns * (needed - private))
    first = code.mask(SEED, 0, code.elements)[:: needed - private].astype(int)
    pieces = code.encode(SEED, range(6)).astype(int)

    def seen_together(*values: np.ndarray) -> float:
        cells = sum(value * 17**place for place, value in enumerate(values))
        return float(chisquare(np.bincount(cells, minlength=17 ** len(values))).pvalue)

    for held in itertools.combinations(range(6), private):
        assert seen_together(first, *pieces[list(held)]) > 1e-9
    if needed - private == 1:  # and one piece more gives the mask away
        assert seen_together(first, pieces[0], pieces[1], *pieces[2 : private + 1]) < 1e-9


def test_two_sets_of_survivors_would_give_away_a_mask() -> None:
    """Test why clients agree on the survivors first. A server that opens a sum honestly and asks
    one client for the same sum without client 3 gets an equation on the mask of client 3."""
    code = MaskCode(Field(32), 8, Thresholds(8, 1, 6), 5)
    prime, root = code.field.prime, code.field.root(8)
    seeds = [bytes([number]) * 32 for number in range(8)]
    pieces = [code.encode(seed, range(8)).tolist() for seed in seeds]
    corrupt, asked, victim = 0, 5, 3
    answer_for_all = sum(pieces[client][asked][0] for client in range(8))
    answer_without = sum(pieces[client][asked][0] for client in range(8) if client != victim)
    stolen = (answer_for_all - answer_without) % prime  # the first is known once a sum is opened
    held = pieces[victim][corrupt][0]
    points = [pow(root, place, prime) for place in (asked, corrupt)]
    shift = pow(points[0] * pow(points[1], -1, prime), 5, prime)
    mask = code.mask(seeds[victim], 0, 5).tolist()
    told = (stolen - shift * held) % prime
    weights = [
        (pow(points[0], power, prime) - shift * pow(points[1], power, prime)) % prime
        for power in range(5)
    ]
    assert told == sum(weight * value for weight, value in zip(weights, mask, strict=True)) % prime
    assert any(weights)


# --- thresholds -----------------------------------------------------------------------------------


@settings(max_examples=300)
@given(st.integers(2, 5000), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 500))
def test_thresholds_of_a_statement(clients: int, corrupt: int, dropped: int, absent: int) -> None:
    statement = Statement(clients + absent, corrupt, dropped).with_clients(clients)
    most_corrupt = max(1, -(-(clients + absent) * corrupt // 10**6))
    most_dropped = clients * dropped // 10**6
    try:
        found = thresholds(statement)
    except ParametersInfeasible:
        assert clients <= most_corrupt + 2 * most_dropped
        return
    assert clients > most_corrupt + 2 * most_dropped
    assert (found.private, found.needed) == (most_corrupt, clients - most_dropped)
    assert 0 < found.private < found.needed <= clients
    assert found.quorum <= found.needed
    # Two quorums of all clients share more than the corrupt ones, and one less would not do.
    assert 2 * found.quorum - clients > found.private >= 2 * (found.quorum - 1) - clients
    assert graph_parameters(statement) == Parameters(clients - 1, found.needed)


def test_a_roster_that_is_too_large_for_the_field_is_refused() -> None:
    with pytest.raises(ParametersInfeasible, match="1048577 clients"):
        MaskCode(Field(32), (1 << 20) + 1, Thresholds(3, 1, 2), 5)


@pytest.mark.parametrize("share", [Fraction(1, 20), Fraction(1, 5)])
def test_pieces_shrink_as_fast_as_clients_grow(share: Fraction) -> None:
    """Test that the size of all pieces of a mask hardly depends on the number of clients."""
    weights = []
    for clients in (100, 1000, 10_000):
        rule = thresholds(Statement.of(clients, float(share), float(share)))
        code = MaskCode(Field(32), clients, rule, 10**6)
        weights.append(clients * code.columns / code.elements)
    expected = float(1 / (1 - 2 * share))
    assert all(abs(weight - expected) < 0.02 for weight in weights)
