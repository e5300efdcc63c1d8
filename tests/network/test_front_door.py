"""What a client of the roster may leave at the server's door, and how much of it."""

from __future__ import annotations

import asyncio
import importlib.util
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from privirec.runtime.enrolment.folders import OperatorFolder

from .test_flower import _card, _signed

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("flwr") is None,
    reason="needs Flower, the extra 'flower'",
)

NODE, OTHER = 77, 78


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def pulled(*numbers: str) -> bytes:
    from flwr.proto.fleet_pb2 import PullMessagesResponse

    answer = PullMessagesResponse()
    for number in numbers:
        answer.messages_list.add().metadata.message_id = number
    return answer.SerializeToString()


def pushed(reply_to: str, **changes: Any) -> bytes:
    """A reply as an honest client pushes it, with changes."""
    from flwr.proto.fleet_pb2 import PushMessagesRequest

    request = PushMessagesRequest()
    request.node.node_id = NODE
    said = request.messages_list.add().metadata
    said.src_node_id, said.dst_node_id, said.reply_to_message_id = NODE, 1, reply_to
    for name, value in changes.items():
        setattr(said, name, value)
    request.message_object_trees.add().object_id = changes.get("message_id", "tree")
    return request.SerializeToString()


def wanted(*parts: str) -> bytes:
    from flwr.proto.fleet_pb2 import PushMessagesResponse

    return PushMessagesResponse(objects_to_push=parts).SerializeToString()


def part(name: str) -> tuple[bytes, bytes]:
    from flwr.proto.message_pb2 import PushObjectRequest, PushObjectResponse

    asked = PushObjectRequest(object_id=name).SerializeToString()
    return asked, PushObjectResponse(stored=True).SerializeToString()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def allowance(clock: Clock, largest: int = 100) -> Any:
    from privirec.extra.flower.allowance import Allowance, HeldBack

    return Allowance(clock, HeldBack(clock), largest)


def test_a_client_replies_once_to_what_it_was_asked_in_its_own_name(clock: Clock) -> None:
    from privirec.extra.flower.allowance import NotAllowed

    own = allowance(clock)
    own.was_sent(pulled("question"))
    for body, said in (
        (b"\xff\xff", "cannot be read"),
        (b"", "other than one message"),
        (pushed("question", src_node_id=OTHER), "in another's name"),
        (pushed("", src_node_id=1, dst_node_id=OTHER), "in another's name, or to another client"),
        (pushed("question", dst_node_id=OTHER), "to another client"),
        (pushed("nothing"), "nothing that it was asked"),
        (pushed(""), "nothing that it was asked"),
    ):
        with pytest.raises(NotAllowed, match=said):
            own.reply(body)
    with pytest.raises(NotAllowed, match="a part of no reply"):
        own.store(1)
    own.reply(pushed("question"))
    own.reply(pushed("question"))  # repeated, because the answer was lost
    with pytest.raises(NotAllowed, match="a second reply"):
        own.reply(pushed("question", message_id="another"))


def test_a_reply_has_so_many_bytes_however_often_it_is_begun(clock: Clock) -> None:
    from privirec.extra.flower.allowance import NotAllowed

    own = allowance(clock, largest=100)
    own.was_sent(pulled("one", "two"))
    for number in ("one", "two"):
        own.reply(pushed(number))
        own.store(60)
        own.reply(pushed(number))
        own.store(40)
        with pytest.raises(NotAllowed, match="more than 100 bytes"):
            own.store(1)


def test_only_the_last_questions_can_be_replied_to(clock: Clock) -> None:
    from privirec.extra.flower.allowance import OPEN_QUESTIONS, NotAllowed

    own = allowance(clock)
    for number in range(OPEN_QUESTIONS + 1):
        own.was_sent(pulled(f"question {number}"))
    own.reply(pushed("question 1"))
    with pytest.raises(NotAllowed):
        own.reply(pushed("question 0"))
    own.was_sent(b"\xff")  # what is no answer of Flower's changes nothing


def test_a_reply_is_held_back_until_it_is_complete_or_given_up(clock: Clock) -> None:
    from privirec.extra.flower.allowance import GIVEN_UP

    own = allowance(clock, largest=1 << 20)
    held = own._held_back
    own.was_sent(pulled("one", "two", "three"))
    assert "one" not in held
    own.reply(pushed("one"))
    assert "one" in held  # before Flower has it
    own.replied(wanted("a", "b"))
    own.stored(*part("a"))
    assert "one" in held
    own.stored(*part("b"))
    assert "one" not in held
    own.reply(pushed("two"))
    own.replied(None)  # Flower did not want it
    assert "two" not in held
    own.reply(pushed("three"))
    own.replied(wanted("c", "d"))
    clock.now += GIVEN_UP - 1
    own.stored(*part("c"))
    clock.now += GIVEN_UP - 1
    assert "three" in held
    clock.now += 2
    assert "three" not in held


def test_whoever_asks_too_often_waits(clock: Clock) -> None:
    from privirec.extra.flower.allowance import BURST, RATE

    own = allowance(clock)
    assert [own.seconds_to_wait() for _ in range(int(BURST))] == [0.0] * int(BURST)
    assert own.seconds_to_wait() == pytest.approx(1 / RATE)
    assert own.seconds_to_wait() == pytest.approx(2 / RATE)
    clock.now += 1000
    assert own.seconds_to_wait() == 0.0


# --- the door -------------------------------------------------------------------------------------


class Door:
    """The front door of a server with one client, and what came through."""

    def __init__(self, folder: Path) -> None:
        from privirec.extra.flower import front_door

        self.key = ec.generate_private_key(ec.SECP384R1())
        home = OperatorFolder.create(folder / "server")
        home.save(home.members.approve(_card(0, self.key)))
        self.through: list[str] = []
        self.answer = b""
        self.hold = asyncio.Event()
        self.hold.set()
        self.door = front_door.FrontDoor(self._application, home)

    async def _application(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        self.through.append(scope["path"].rsplit("/", 1)[1])
        await self.hold.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": self.answer})

    async def ask(self, name: str, *pieces: bytes, stop: bool = False) -> int:
        said: list[int] = []
        waiting = list(pieces or (b"",))

        async def receive() -> dict[str, Any]:
            if not waiting:
                await asyncio.sleep(60)
            body = waiting.pop(0)
            return {"type": "http.request", "body": body, "more_body": bool(waiting) or stop}

        async def send(event: dict[str, Any]) -> None:
            said.extend([event["status"]] if "status" in event else [])

        raw = [(key.encode(), value.encode()) for key, value in _signed(self.key).items()]
        scope = {"type": "http", "path": f"/v1/fleet/{name}", "headers": raw, "method": "POST"}
        await self.door(scope, receive, send)
        return said[0]


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(work())  # type: ignore[arg-type]


def test_a_message_to_another_client_in_the_servers_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower compares who is connected with who says so in the request, but not with who says so in
    the message."""
    from privirec.extra.flower.allowance import Allowance

    async def attack() -> None:
        door = Door(tmp_path)
        injected = pushed("", src_node_id=1, dst_node_id=OTHER)
        assert await door.ask("push-messages", injected) == 403
        assert door.through == []
        with monkeypatch.context() as off:
            off.setattr(Allowance, "reply", lambda *_: None)
            assert await door.ask("push-messages", injected) == 200
            assert door.through == ["push-messages"]

    run(attack)


def test_more_than_a_reply_may_have_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from privirec.extra.flower.allowance import Allowance

    async def attack() -> None:
        door = Door(tmp_path)
        door.door._largest_reply = 1000
        assert await door.ask("push-object", bytes(10)) == 403
        door.answer = pulled("question")
        assert await door.ask("pull-messages") == 200
        door.answer = wanted("part")
        assert await door.ask("push-messages", pushed("question")) == 200
        assert "question" in door.door.held_back
        door.answer = b""
        assert [await door.ask("push-object", bytes(400)) for _ in range(4)] == [
            *(200, 200, 403, 403)
        ]
        with monkeypatch.context() as off:
            off.setattr(Allowance, "store", lambda *_: None)
            assert [await door.ask("push-object", bytes(400)) for _ in range(9)] == [200] * 9

    run(attack)


def test_requests_at_once_and_requests_that_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from privirec.extra.flower import front_door
    from privirec.extra.flower.allowance import AT_ONCE

    async def attack() -> None:
        door = Door(tmp_path)
        door.hold.clear()
        asking = [asyncio.create_task(door.ask("get-run")) for _ in range(AT_ONCE + 5)]
        for _ in range(500):
            if len(door.through) == AT_ONCE and sum(task.done() for task in asking) == 5:
                break
            await asyncio.sleep(0.02)
        assert len(door.through) == AT_ONCE
        assert [task.result() for task in asking if task.done()] == [429] * 5
        door.hold.set()
        assert sorted([await task for task in asking]) == [200] * AT_ONCE + [429] * 5
        assert await door.ask("get-run") == 200
        monkeypatch.setattr(front_door, "SILENCE", 0.05)
        assert await door.ask("get-run", b"begun", stop=True) == 408
        assert await door.ask("get-run", *[bytes(1 << 15)] * 3) == 413

    run(attack)
    said = capsys.readouterr().out
    for what in (
        *("too many requests at once", "a request that stopped in the middle"),
        "a request of more than 65536 bytes",
    ):
        assert f"turned away client 0 (shop 0): {what}" in said


def test_the_server_does_not_see_replies_that_are_not_complete() -> None:
    """It would wait for the rest of one, and hear nobody else meanwhile."""
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest

    from privirec.extra.flower.allowance import HeldBack
    from privirec.extra.flower.front_door import FOR_THE_SERVER, Inside

    seen: list[list[str]] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        seen.append(list(PullAppMessagesRequest.FromString(body).message_ids))

    held = HeldBack(Clock())
    held.hold("slow")
    inside = Inside(application, held)

    def pull(*numbers: str) -> mock.AsyncMock:
        body = PullAppMessagesRequest(message_ids=numbers).SerializeToString()
        receive = mock.AsyncMock(return_value={"type": "http.request", "body": body})
        send = mock.AsyncMock()
        scope = {"type": "http", "path": FOR_THE_SERVER}
        asyncio.run(inside(scope, receive, send))
        return send

    pull("quick", "slow", "other")
    assert seen == [["quick", "other"]]
    answered = pull("slow")
    assert len(seen) == 1
    assert answered.call_args_list[0].args[0]["status"] == 200
    held.let_go("slow")
    pull("slow")
    assert seen[1:] == [["slow"]]


def test_what_is_no_message_does_not_end_a_run() -> None:
    """Flower makes a message of whatever a client left there, and takes for granted that it is."""
    from flwr.app import Message
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
    from flwr.superlink.grid import http_grid

    from privirec.extra.flower.packing import pack, unpack
    from privirec.extra.flower.serve_run import forgiving

    record = pack(os.urandom(9))
    parts = {name: one.deflate() for name, one in get_all_nested_objects(record).items()}
    inflate = http_grid.inflate_object_from_contents
    unguarded = inflate(record.object_id, dict(parts))
    with pytest.raises(AttributeError):
        _ = unguarded.metadata
    for contents in (parts, {}, dict.fromkeys(parts, b"junk")):
        found = forgiving(inflate)(record.object_id, dict(contents))
        assert isinstance(found, Message)
        assert found.has_error()
    good = pack(b"good")
    assert unpack(mock.Mock(content=good)) == b"good"
