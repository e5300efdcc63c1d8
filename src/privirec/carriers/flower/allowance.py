"""What one client may use of the server, so that the others have theirs.

A client of the roster may be hostile. It can ask only so often, and so much at once, and what
Flower keeps for it is bounded: Flower takes a message from whoever is registered, in any name, to
anybody, with any number of objects. Here a client may only reply, to what it was asked, in its own
name, once, and with so many bytes.

Flower also shows a reply to the server before its parts are there, and then waits for them, for
minutes, while nobody else is heard. So a reply is held back until it is complete.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.fleet_pb2 import (
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.message_pb2 import PushObjectRequest, PushObjectResponse
from flwr.supercore.constant import OBJECT_PUSH_SESSION_TTL_SECONDS
from google.protobuf.message import DecodeError

from privirec.carriers.flower.launch import LARGEST_REPLY

AT_ONCE = 8
"""Requests of one client at a time; Flower's client makes two or three."""
RATE, BURST = 40.0, 200.0
"""Requests a second, and how many before that counts. Whoever asks faster waits."""
OPEN_QUESTIONS = 8
"""Messages to a client that it may still reply to."""


GIVEN_UP = OBJECT_PUSH_SESSION_TTL_SECONDS + 20.0
"""Seconds without a part after which Flower has forgotten a reply."""


class NotAllowed(Exception):
    """Something that no honest client sends, or more of it than one may."""


@dataclass
class _Question:
    """A message that the client was sent."""

    number: str
    room: int
    reply: bytes = b""
    """Digest of the reply, once there is one: it stays the same."""
    missing: set[str] = field(default_factory=set)
    """Parts of the reply that have not come."""


class HeldBack:
    """Replies of all clients that are not complete, by the message that they reply to."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}

    def hold(self, number: str) -> None:
        """Until it is complete; each part that comes prolongs it."""
        self._since[number] = self._clock()

    def let_go(self, number: str) -> None:
        self._since.pop(number, None)

    def __contains__(self, number: str) -> bool:
        """Not for ever: what Flower has given up is for the server to hear of."""
        return self._clock() - self._since.get(number, -GIVEN_UP) < GIVEN_UP


class Allowance:
    """What is left to one client."""

    def __init__(
        self,
        clock: Callable[[], float],
        held_back: HeldBack,
        largest_reply: int = LARGEST_REPLY,
    ) -> None:
        self.at_once = 0
        self._held_back = held_back
        self._clock = clock
        self._turns, self._counted = BURST, clock()
        self._largest_reply = largest_reply
        self._questions: OrderedDict[str, _Question] = OrderedDict()
        self._answering: _Question | None = None

    def seconds_to_wait(self) -> float:
        """Until it is this request's turn."""
        now = self._clock()
        self._turns = min(BURST, self._turns + (now - self._counted) * RATE) - 1
        self._counted = now
        return max(0.0, -self._turns / RATE)

    def was_sent(self, body: bytes) -> None:
        """It pulled messages, and may reply to them."""
        try:
            found = PullMessagesResponse.FromString(body)
        except DecodeError:
            return
        for message in found.messages_list:
            number = message.metadata.message_id
            self._questions.setdefault(number, _Question(number, self._largest_reply))
        while len(self._questions) > OPEN_QUESTIONS:
            self._held_back.let_go(self._questions.popitem(last=False)[0])

    def reply(self, body: bytes) -> None:
        """It pushes a message; raise NotAllowed unless that is the reply to one it was sent."""
        try:
            found = PushMessagesRequest.FromString(body)
        except DecodeError:
            raise NotAllowed("a message that cannot be read") from None
        if len(found.messages_list) != 1 or len(found.message_object_trees) != 1:
            raise NotAllowed("other than one message")
        (message,), (tree,) = found.messages_list, found.message_object_trees
        said = message.metadata
        if (said.src_node_id, said.dst_node_id) != (found.node.node_id, SUPERLINK_NODE_ID):
            raise NotAllowed("a message in another's name, or to another client")
        question = self._questions.get(said.reply_to_message_id)
        if question is None:
            raise NotAllowed("a reply to nothing that it was asked")
        parts = (one.SerializeToString(deterministic=True) for one in (message, tree))
        digest = hashlib.sha256(b"".join(parts)).digest()
        if question.reply not in (b"", digest):
            raise NotAllowed("a second reply to one message")
        question.reply, self._answering = digest, question
        self._held_back.hold(question.number)  # before Flower has it

    def replied(self, body: bytes | None) -> None:
        """What Flower says to it: which parts it wants; None if it does not want the reply."""
        if (question := self._answering) is None:
            return
        wanted = PushMessagesResponse.FromString(body).objects_to_push if body is not None else ()
        question.missing = set(wanted)
        self._let_go_if_complete(question)

    def store(self, size: int) -> None:
        """It pushes a part of its reply; raise NotAllowed where that is too much."""
        if self._answering is None:
            raise NotAllowed("a part of no reply")
        self._answering.room -= size
        if self._answering.room < 0:
            raise NotAllowed(f"a reply of more than {self._largest_reply} bytes")

    def stored(self, asked: bytes, body: bytes) -> None:
        """What Flower says to a part."""
        question = self._answering
        if question is None or not PushObjectResponse.FromString(body).stored:
            return
        question.missing.discard(PushObjectRequest.FromString(asked).object_id)
        self._held_back.hold(question.number)
        self._let_go_if_complete(question)

    def _let_go_if_complete(self, question: _Question) -> None:
        if not question.missing:
            self._held_back.let_go(question.number)
