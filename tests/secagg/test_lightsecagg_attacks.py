"""Tests of attacks on LightSecAgg by a lying server or a broken client."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chisquare

from privirec.extra.lightsecagg.field import ElementShape
from privirec.extra.lightsecagg.messages import (
    Deal,
    LightAdvertise,
    LightAnswer,
    LightConfirm,
    LightSurvivors,
    Open,
    Pieces,
    SignedKey,
    decode,
)
from privirec.extra.lightsecagg.shared import EXCHANGE, pieces_context, survivors_statement
from privirec.secagg import (
    Agreement,
    ClientPolicy,
    ClientSession,
    LocalFederation,
    Statement,
    VectorShape,
)
from privirec.secagg import keys as secagg_keys
from privirec.secagg.announcing import Announcement
from privirec.secagg.errors import (
    AgreementMismatch,
    BadKey,
    BadShare,
    BadSignature,
    BelowThreshold,
    CohortChanged,
    CohortTooSmall,
    MalformedMessage,
    NotInGraph,
    OutOfOrder,
    ParametersInfeasible,
    ProtocolError,
    ReplayedMessage,
    RosterMismatch,
    SecondSurvivorSet,
    SessionClosed,
    Stranger,
    TooManyDropped,
    WeakParameters,
    WrongProtocol,
    WrongRun,
)
from privirec.secagg.messages import Announce, ProtocolMessage, encode
from privirec.secagg.participants import write_participants
from secagg.testing import InsecureSeededBytes

from .lightsecagg_run import PROTOCOL, Run, plain_sum, start, vector

VICTIM = 3


def told(run: Run, kind: type[ProtocolMessage], client: int = VICTIM) -> ProtocolMessage:
    message = decode(run.told[client])
    assert isinstance(message, kind)
    return message


def refuses(
    client: ClientSession, message: ProtocolMessage | bytes, error: type[Exception]
) -> None:
    """Check that the client refuses with this error: it has left if fatal, else nothing changed."""
    before = client.dump()
    raw = message if isinstance(message, bytes) else encode(message)
    with pytest.raises(ProtocolError) as refusal:
        client.receive(raw)
    assert type(refusal.value) is error
    if refusal.value.fatal:
        with pytest.raises(SessionClosed):
            client.dump()
    else:
        assert client.dump() == before


def digest_of(run: Run) -> bytes:
    return Announcement.read(run.server.announcement, EXCHANGE).digest


# --- the announcement -----------------------------------------------------------------------------


def announced(run: Run) -> Announce:
    return Announcement.read(run.server.announcement, EXCHANGE).terms


def test_announcements_that_are_refused() -> None:
    def session(policy: ClientPolicy | None = None) -> ClientSession:
        return PROTOCOL.client(
            VICTIM,
            run.identities[VICTIM],
            run.roster,
            policy or ClientPolicy(),
            InsecureSeededBytes(0),
        )

    run = start()
    good = announced(run)
    refuses(session(), replace(good, protocol=2), WrongProtocol)
    refuses(session(), replace(good, roster=bytes(32)), RosterMismatch)
    fewer = replace(good, statement=replace(good.statement, clients=7))
    refuses(session(), fewer, RosterMismatch)
    refuses(session(ClientPolicy(min_cohort=9)), good, CohortTooSmall)
    refuses(session(ClientPolicy(max_dropped_share=0.1)), good, WeakParameters)
    wide = replace(good, shapes=(VectorShape(20, 62, 1),))
    refuses(session(), wide, ParametersInfeasible)
    hopeless = replace(good, statement=replace(good.statement, corrupt_ppm=700_000))
    refuses(session(), hopeless, ParametersInfeasible)
    agreed = Agreement(good.run, good.statement, good.shapes, good.block_entries)
    assert session(ClientPolicy(agreement=agreed)).receive(encode(good))
    for other in (
        replace(agreed, run=bytes(16)),
        replace(agreed, statement=replace(good.statement, corrupt_ppm=1)),
        replace(agreed, shapes=(*good.shapes, *good.shapes)),
        replace(agreed, block_entries=16),
    ):
        refuses(session(ClientPolicy(agreement=other)), good, AgreementMismatch)


# --- holders of pieces, and their keys ------------------------------------------------------------


def test_thresholds_that_are_not_the_clients_own_are_refused() -> None:
    for change in ({"private": 2}, {"private": 0}, {"needed": 6}, {"needed": 8}):
        run = start().go_to("share")
        refuses(run.clients[VICTIM], replace(told(run, Deal), **change), WeakParameters)


def test_a_client_that_fears_more_corrupt_ones_takes_no_part() -> None:
    run = start(policy=ClientPolicy(corrupt_share=0.3)).go_to("share")
    with pytest.raises(WeakParameters, match=r"1 pieces .* computes 3 and 7"):
        run.clients[VICTIM].receive(run.told[VICTIM])
    run = start(policy=ClientPolicy(corrupt_share=0.9)).go_to("share")
    refuses(run.clients[VICTIM], run.told[VICTIM], ParametersInfeasible)


def test_the_corrupt_clients_of_the_whole_roster_count() -> None:
    """Test a server that omits only honest clients: T is for 200 clients, and 160 take part."""
    run = start(200, shares=(0.1, 0.2)).go_to("share", gone=range(40, 80))
    deal = told(run, Deal, 150)
    assert isinstance(deal, Deal)
    assert (deal.private, deal.needed) == (20, 128)
    refuses(run.clients[150], replace(deal, private=16), WeakParameters)


@pytest.mark.parametrize(
    ("participants", "error"),
    [
        ([1, 2, 3], CohortTooSmall),
        ([0, 1, 2, 3, 4, 5], CohortTooSmall),
        ([0, 1, 2, 4, 5, 6, 7], NotInGraph),
    ],
)
def test_maps_of_participants_that_are_refused(
    participants: list[int], error: type[Exception]
) -> None:
    run = start().go_to("share")
    receivers = write_participants(participants, run.roster)
    refuses(run.clients[VICTIM], replace(told(run, Deal), receivers=receivers), error)


def test_a_map_that_does_not_fit_the_roster_is_noise() -> None:
    run = start(9, shares=(0.05, 0.2)).go_to("share")
    for receivers in (b"\xff", b"\xff\x01\x00", b"\xff\xff"):
        lie = replace(told(run, Deal), receivers=receivers)
        refuses(run.clients[VICTIM], lie, MalformedMessage)
    run.finish_step()


def signed_key(run: Run, client: int, signer: int, public: bytes) -> SignedKey:
    signed = secagg_keys.advertised_bytes(digest_of(run), client, public, b"")
    return SignedKey(public, run.identities[signer].sign(signed))


def test_keys_that_are_refused() -> None:
    own = secagg_keys.public_key(b"m" * 32)

    def lie(change: dict[int, SignedKey], error: type[Exception]) -> None:
        run = start().go_to("share")
        deal = told(run, Deal)
        assert isinstance(deal, Deal)
        listed = tuple(change.get(place, key) for place, key in enumerate(deal.keys))
        refuses(run.clients[VICTIM], replace(deal, keys=listed), error)

    run = start().go_to("share")
    deal = told(run, Deal)
    assert isinstance(deal, Deal)
    lie({5: SignedKey(own, deal.keys[5].signature)}, BadSignature)
    lie({5: signed_key(run, 5, 4, own)}, BadSignature)
    lie({5: deal.keys[4]}, BadSignature)
    lie({5: signed_key(run, 5, 5, bytes(32))}, BadKey)
    lie({VICTIM: signed_key(run, VICTIM, VICTIM, own)}, BadKey)
    refuses(run.clients[VICTIM], replace(deal, keys=deal.keys[:-1]), BadKey)
    refuses(start().go_to("share").clients[VICTIM], replace(deal, keys=()), BadKey)


def test_the_server_takes_only_good_keys_of_the_roster() -> None:
    run = start()
    run.listen()
    good = decode(run.clients[1].receive(run.told[1]) or b"")
    assert isinstance(good, LightAdvertise)
    forged = replace(good, key=signed_key(run, 1, 0, good.key.sealing_key))
    with pytest.raises(BadSignature):
        run.server.receive(1, encode(forged))
    small = replace(good, key=signed_key(run, 1, 1, bytes(32)))
    with pytest.raises(BadKey):
        run.server.receive(1, encode(small))
    with pytest.raises(Stranger):
        run.server.receive(9, encode(replace(good, client=9)))
    with pytest.raises(WrongRun):
        run.server.receive(2, encode(good))
    run.server.receive(1, encode(good))
    with pytest.raises(ReplayedMessage):
        run.server.receive(1, encode(good))
    assert run.server.waiting_for() == set(range(8)) - {1}


def test_the_server_takes_only_pieces_for_everybody() -> None:
    run = start().go_to("share")
    good = decode(run.clients[2].receive(run.told[2]) or b"")
    assert isinstance(good, Pieces)
    size = len(good.sealed) // good.count
    for bad in (
        replace(good, count=6, sealed=good.sealed[size:]),
        replace(good, sealed=good.sealed + bytes(good.count)),
        replace(good, count=0, sealed=b""),
    ):
        with pytest.raises(BadShare):
            run.server.receive(2, encode(bad))
    assert 2 in run.server.waiting_for()
    run.server.receive(2, encode(good))


# --- survivors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("survivors", "error"),
    [
        ([0, 1, 2, 3, 4, 5], TooManyDropped),
        ([3], CohortTooSmall),
        ([], NotInGraph),
        ([0, 1, 2, 4, 5, 6, 7], NotInGraph),
    ],
)
def test_survivors_that_are_refused(survivors: list[int], error: type[Exception]) -> None:
    run = start().go_to("confirm")
    lie = replace(told(run, LightSurvivors), survivors=write_participants(survivors, run.roster))
    refuses(run.clients[VICTIM], lie, error)


def test_a_survivor_that_takes_no_part_is_refused() -> None:
    run = start().go_to("confirm", gone=[6])
    lie = replace(told(run, LightSurvivors), survivors=b"\xff")
    refuses(run.clients[VICTIM], lie, Stranger)


def test_survivors_before_the_vector_are_too_early() -> None:
    run = start().go_to("input")
    survivors = LightSurvivors(announced(run).run, 1, VICTIM, b"\xff")
    refuses(run.clients[VICTIM], survivors, OutOfOrder)
    blocks = run.clients[VICTIM].contribute(1, [vector(VICTIM)])
    next(blocks)
    refuses(run.clients[VICTIM], survivors, OutOfOrder)


@pytest.mark.parametrize("step", ["recover", "share", "input", "confirm"])
def test_there_is_one_set_of_survivors_for_a_sum(step: str) -> None:
    """Test until the next sum is over, with the first set answered or only confirmed."""
    run = start(sums=3).go_to("confirm")
    honest = told(run, LightSurvivors)
    run.finish_step()
    run.go_to(step, 1 if step == "recover" else 2)
    refuses(run.clients[VICTIM], honest, ReplayedMessage)
    lie = replace(honest, survivors=write_participants([0, 1, 2, 3, 4, 5, 6], run.roster))
    refuses(run.clients[VICTIM], lie, SecondSurvivorSet)


@pytest.mark.parametrize("step", ["share", "confirm"])
def test_later_sums_have_the_clients_of_the_first(step: str) -> None:
    run = start(sums=2).go_to(step, 2)
    fewer = write_participants(range(7), run.roster)
    if step == "share":
        refuses(run.clients[VICTIM], replace(told(run, Deal), receivers=fewer), CohortChanged)
    else:
        refuses(
            run.clients[VICTIM], replace(told(run, LightSurvivors), survivors=fewer), CohortChanged
        )


def test_later_sums_have_nothing_new() -> None:
    run = start(sums=2).go_to("share")
    keys = told(run, Deal).keys  # type: ignore[attr-defined]
    run.go_to("recover")
    run.answer()
    first = told(run, Open)
    assert isinstance(first, Open)
    run.server.open_sum()
    run.listen()
    refuses(run.clients[1], replace(told(run, Deal, 1), keys=keys), BadKey)
    refuses(run.clients[2], replace(told(run, Deal, 2), needed=6), WeakParameters)
    fresh = start(sums=2).go_to("recover", 2)
    opening = replace(told(fresh, Open), signers=first.signers, signatures=first.signatures)
    refuses(fresh.clients[VICTIM], opening, MalformedMessage)
    assert fresh.finish_sum() == plain_sum(range(8))


# --- a server that tells clients different things -------------------------------------------------


def split_views(run: Run, told_less: list[int]) -> tuple[bytes, dict[int, dict[int, bytes]]]:
    """Tell some clients that client 7 dropped and the others that none did; all sign."""
    run.go_to("confirm")
    fewer = write_participants(range(7), run.roster)
    signed: dict[int, dict[int, bytes]] = {7: {}, 8: {}}
    for client in range(8):
        message = told(run, LightSurvivors, client)
        less = client in told_less
        if less:
            message = replace(message, survivors=fewer)
        reply = decode(run.clients[client].receive(encode(message)) or b"")
        assert isinstance(reply, LightConfirm)
        signed[7 if less else 8][client] = reply.signature
    return fewer, signed


def opening_for(run: Run, client: int, signatures: dict[int, bytes]) -> Open:
    """Return a message to a client that knows seven survivors; it refuses before it reads the
    pieces."""
    return Open(
        announced(run).run,
        1,
        client,
        write_participants(signatures, run.roster),
        tuple(signatures[signer] for signer in sorted(signatures)),
        6,
        b"?" * 6,
    )


def test_nobody_answers_for_two_sets_of_survivors() -> None:
    """Test 8 clients, one of them corrupt: 5 must agree, and 4 were told that client 7 dropped."""
    run = start()
    _, signed = split_views(run, [0, 1, 2, 3])
    refuses(run.clients[0], opening_for(run, 0, signed[7]), BelowThreshold)
    # Signatures for the other set do not help, with client 7 or without.
    refuses(run.clients[1], opening_for(run, 1, signed[7] | signed[8]), Stranger)
    without = {client: signature for client, signature in signed[8].items() if client != 7}
    refuses(run.clients[2], opening_for(run, 2, signed[7] | without), BadSignature)


def test_a_corrupt_client_that_signs_twice_does_not_make_two_quorums() -> None:
    """Test client 0, which colludes and signs both sets: one of them still has too few
    signatures."""
    run = start()
    _, signed = split_views(run, [0, 1, 2, 3])
    both = run.identities[0].sign(survivors_statement(digest_of(run), b"\xff", b"\xff"))
    assert len(signed[8] | {0: both}) == 5  # this set can be opened
    refuses(run.clients[1], opening_for(run, 1, signed[7]), BelowThreshold)


def test_clients_that_were_told_different_participants_cannot_open_each_others_pieces() -> None:
    """Test client 7, which takes part according to some clients only."""
    run = start().go_to("share")
    fewer = write_participants(range(7), run.roster)
    sealed = {}
    for client in range(7):
        deal = told(run, Deal, client)
        assert isinstance(deal, Deal)
        if client == 1:
            deal = replace(deal, receivers=fewer, needed=6, keys=deal.keys[:7])
        reply = decode(run.clients[client].receive(encode(deal)) or b"")
        assert isinstance(reply, Pieces)
        sealed[client] = reply
    assert list(run.clients[VICTIM].contribute(1, [vector(VICTIM)]))
    confirmed = run.clients[VICTIM].receive(
        encode(LightSurvivors(announced(run).run, 1, VICTIM, fewer))
    )
    assert confirmed
    statement = survivors_statement(digest_of(run), b"\xff", fewer)
    pieces = b""
    for client in range(7):
        if client != VICTIM:
            size = len(sealed[client].sealed) // sealed[client].count
            rank = VICTIM - (client < VICTIM)
            # Client 1 computes longer pieces; cut them to the common length.
            part = sealed[client].sealed[size * rank : size * (rank + 1)]
            pieces += sealed[client].nonce + part[: len(sealed[0].sealed) // 7]
    message = Open(
        announced(run).run,
        1,
        VICTIM,
        write_participants(range(5), run.roster),
        tuple(run.identities[client].sign(statement) for client in range(5)),
        6,
        pieces,
    )
    refuses(run.clients[VICTIM], message, BadShare)


# --- signatures and pieces ------------------------------------------------------------------------


def test_openings_that_are_refused() -> None:
    def lie(change: dict[str, object], error: type[Exception]) -> None:
        run = start().go_to("recover")
        opening = told(run, Open)
        refuses(run.clients[VICTIM], replace(opening, **change), error)  # type: ignore[arg-type]

    run = start().go_to("recover")
    good = told(run, Open)
    assert isinstance(good, Open)
    assert len(good.signatures) == 5
    four = write_participants(range(4), run.roster)
    lie({"signers": four, "signatures": good.signatures[:4]}, BelowThreshold)
    lie({"signatures": good.signatures[:4]}, MalformedMessage)
    lie({"signatures": (*good.signatures[1:], good.signatures[0])}, BadSignature)
    lie({"signers": b"", "signatures": ()}, MalformedMessage)
    statement = survivors_statement(digest_of(run), b"\xff", b"\x7f")
    other = tuple(run.identities[client].sign(statement) for client in range(5))
    lie({"signatures": other}, BadSignature)
    size = len(good.pieces) // good.count
    lie({"count": 6, "pieces": good.pieces[size:]}, BadShare)
    lie({"count": 0, "pieces": b""}, BadShare)
    lie({"pieces": good.pieces[size:] + good.pieces[:size]}, BadShare)
    lie({"pieces": good.pieces[:-1] + bytes([good.pieces[-1] ^ 1])}, BadShare)
    lie({"pieces": bytes(7)}, BadShare)


def test_pieces_of_another_sum_do_not_open() -> None:
    run = start(sums=2).go_to("recover")
    first = told(run, Open)
    assert isinstance(first, Open)
    run.go_to("recover", 2)
    lie = replace(told(run, Open), pieces=first.pieces)
    refuses(run.clients[VICTIM], lie, BadShare)


@pytest.mark.parametrize("plain", [b"\xff" * 17, bytes(16) + b"\xf0"])
def test_a_client_that_seals_something_else_than_pieces(plain: bytes) -> None:
    """Test four elements of 33 bits in 17 bytes: all ones are not below the prime, and four bits
    are unused."""
    run = start().go_to("recover")
    opening = told(run, Open)
    assert isinstance(opening, Open)
    size = len(opening.pieces) // opening.count
    assert size == 12 + 17 + 16
    corrupt = run.clients[0].state  # type: ignore[attr-defined]
    key = corrupt.sealing_keys.reveal(64 * VICTIM, 64 * VICTIM + 32)
    bound_to = pieces_context(digest_of(run), 1, secagg_keys.NOTHING_ASKED, b"\xff")
    context = secagg_keys.shares_context(bound_to, 0, VICTIM)
    sealed = bytes(12) + secagg_keys.seal(key, bytes(12), plain, context)
    lie = replace(opening, pieces=sealed + opening.pieces[size:])
    with pytest.raises(BadShare, match="client 0 has dealt something else"):
        run.clients[VICTIM].receive(encode(lie))


def test_an_opening_is_answered_once() -> None:
    run = start(sums=2).go_to("recover")
    opening = told(run, Open)
    run.finish_step()
    refuses(run.clients[VICTIM], opening, ReplayedMessage)
    run.go_to("confirm", 2)
    refuses(run.clients[VICTIM], opening, ReplayedMessage)


def test_messages_out_of_order_are_noise() -> None:
    run = start(sums=2)
    deal = Deal(announced(run).run, 1, VICTIM, 1, 7, bytes(32), 8, b"\xff", ())
    refuses(run.clients[VICTIM], deal, OutOfOrder)
    run.go_to("share")
    first = told(run, Deal)
    refuses(run.clients[VICTIM], run.server.announcement, ReplayedMessage)
    refuses(run.clients[VICTIM], replace(first, sum_number=2), OutOfOrder)
    refuses(run.clients[VICTIM], replace(first, run=bytes(16)), WrongRun)
    refuses(run.clients[VICTIM], replace(first, client=2), WrongRun)
    opening = Open(first.run, 1, VICTIM, b"", (), 0, b"")
    refuses(run.clients[VICTIM], opening, OutOfOrder)
    answer = LightAnswer(first.run, 1, VICTIM, b"")
    refuses(run.clients[VICTIM], answer, OutOfOrder)
    run.finish_step()
    refuses(run.clients[VICTIM], first, ReplayedMessage)
    run.go_to("confirm")
    refuses(run.clients[VICTIM], opening, OutOfOrder)
    refuses(run.clients[VICTIM], replace(told(run, LightSurvivors), sum_number=2), OutOfOrder)
    assert run.finish_sum() == plain_sum(range(8))


# --- clients that answer wrongly ------------------------------------------------------------------


@pytest.mark.parametrize("liar", [0, 5, 7])
def test_one_wrong_answer_opens_nothing(liar: int) -> None:
    """Test eight clients, where any seven open the sum: the eighth answer does not fit."""
    run = start().go_to("recover")
    for client in range(8):
        reply = decode(run.clients[client].receive(run.told[client]) or b"")
        assert isinstance(reply, LightAnswer)
        if client == liar:
            reply = replace(reply, packed=bytes([reply.packed[0] ^ 1]) + reply.packed[1:])
        run.server.receive(client, encode(reply))
    with pytest.raises(BadShare, match="not the sum of the pieces"):
        run.server.open_sum()
    assert run.server.aborted


def test_answers_that_are_no_elements_are_noise_to_the_server() -> None:
    run = start().go_to("recover")
    good = decode(run.clients[2].receive(run.told[2]) or b"")
    assert isinstance(good, LightAnswer)
    for packed in (b"", good.packed[:-1], good.packed + b"\0", b"\xff" * 16 + b"\x0f"):
        with pytest.raises(MalformedMessage):
            run.server.receive(2, encode(replace(good, packed=packed)))
    run.server.receive(2, encode(good))
    assert run.finish_step(but=[2]) == plain_sum(range(8))


def test_blocks_that_are_no_elements_are_noise_to_the_server() -> None:
    run = start().go_to("input")
    packed = b"".join(run.clients[2].contribute(1, [vector(2)]))
    for place in (0, 33, 66):  # in the first block of eight, and after blocks that were added
        bad = packed[:place] + b"\xff" * 16 + packed[place + 16 :]
        with pytest.raises(MalformedMessage, match="below the prime"):
            run.server.add_vector(2, 1, bad)
    run.clients[2] = start().go_to("input").clients[2]
    assert run.finish_sum() == plain_sum(range(8))


def test_confirmations_of_something_else_are_noise_to_the_server() -> None:
    run = start().go_to("confirm")
    good = decode(run.clients[2].receive(run.told[2]) or b"")
    assert isinstance(good, LightConfirm)
    with pytest.raises(BadSignature):
        run.server.receive(2, encode(replace(good, signature=bytes(64))))
    run.server.receive(2, encode(good))
    run.answer(but=[2])
    run.server.advance()
    run.listen()
    assert run.finish_sum() == plain_sum(range(8))


# --- the server's view ----------------------------------------------------------------------------


def test_the_servers_view_does_not_depend_on_the_input() -> None:
    """Test uploads, and all pieces of one corrupt client, over many runs with two inputs."""
    shape = VectorShape(64, 32, 10)
    elements = ElementShape(shape)
    for entry in (0, 10):
        uploads: list[np.ndarray] = []
        for number in range(40):

            def observe(direction: str, client: int, message: bytes) -> None:
                if client == 2 and direction == "vector":
                    uploads.append(elements.field.unpack(message, 64))  # noqa: B023

            run = LocalFederation(
                "lightsecagg",
                5,
                [shape],
                corrupt_share=0.2,
                random_bytes=InsecureSeededBytes(f"{number} {entry}"),
                observe=observe,
            )
            run.sum(lambda client: [np.full(64, entry if client == 2 else 1)])  # noqa: B023
        cells = np.stack(uploads) // np.uint64(-(-elements.field.prime // 32))
        counts = np.bincount(cells.ravel().astype(int), minlength=32)
        assert chisquare(counts).pvalue > 1e-6


def test_entries_and_pieces_do_not_show_in_messages() -> None:
    shown = repr(LightAnswer(bytes(16), 1, 1, b"ANSWER")) + repr(
        Pieces(bytes(16), 1, 1, bytes(12), 1, b"SEALED")
    )
    shown += repr(Open(bytes(16), 1, 1, b"", (), 1, b"SEALED"))
    assert "ANSWER" not in shown
    assert "SEALED" not in shown


def test_a_statement_with_too_many_corrupt_clients_is_not_announced() -> None:
    with pytest.raises(ParametersInfeasible):
        start(shares=(0.7, 0.2))
    assert Statement.of(8, 0.7, 0.2).corrupt == 6
