"""Limits on what one client may use of the server, to protect the other clients.

A client on the roster may be hostile. This module limits its request rate, its concurrent requests
and the bytes that Flower stores for it. Flower itself accepts messages from every registered node,
under any sender's name, to any recipient, with any number of objects. Here a client may only reply
to a message that it was sent, under its own name, once, and with a bounded number of bytes.

Flower also shows a reply to the server before its parts have arrived, and then waits for them for
minutes, during which it handles no other client. So a reply is held back until it is complete.
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

from privirec.extra.flower.launch import LARGEST_REPLY

AT_ONCE = 8
"""Concurrent requests per client; Flower's client makes two or three."""
RATE, BURST = 40.0, 200.0
"""Requests per second and client, and the burst allowed above that rate; further ones wait."""
OPEN_QUESTIONS = 8
"""Largest number of messages to a client that it may still reply to."""


GIVEN_UP = OBJECT_PUSH_SESSION_TTL_SECONDS + 20.0
"""Seconds without a new part after which Flower has discarded a reply."""


class NotAllowed(Exception):
    """A request that no honest client sends, or that exceeds the client's limits."""


@dataclass
class _Question:
    """A message sent to the client, and the state of its reply."""

    number: str
    room: int
    reply: bytes = b""
    """Digest of the reply, empty until there is one; it cannot change afterwards."""
    missing: set[str] = field(default_factory=set)
    """Parts of the reply that have not arrived."""


class HeldBack:
    """Incomplete replies of all clients, by the id of the message that they reply to."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}

    def hold(self, number: str) -> None:
        """Hold a reply back until it is complete; each call restarts the time limit."""
        self._since[number] = self._clock()

    def let_go(self, number: str) -> None:
        self._since.pop(number, None)

    def __contains__(self, number: str) -> bool:
        """Return True while a reply is held back.

        False after `GIVEN_UP` seconds, so that the server learns that Flower discarded the reply.
        """
        return self._clock() - self._since.get(number, -GIVEN_UP) < GIVEN_UP


class Allowance:
    """Request rate, concurrency and open messages of one client."""

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
        """Count one request; return the seconds that it must wait to keep to `RATE`."""
        now = self._clock()
        self._turns = min(BURST, self._turns + (now - self._counted) * RATE) - 1
        self._counted = now
        return max(0.0, -self._turns / RATE)

    def was_sent(self, body: bytes) -> None:
        """Record the messages that the client pulled; it may reply to them."""
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
        """Check a pushed message; raise NotAllowed unless it replies to one the client was sent."""
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
        """Record Flower's response to a reply: the parts that it wants; None if it refused."""
        if (question := self._answering) is None:
            return
        wanted = PushMessagesResponse.FromString(body).objects_to_push if body is not None else ()
        question.missing = set(wanted)
        self._let_go_if_complete(question)

    def store(self, size: int) -> None:
        """Count the bytes of a pushed part; raise NotAllowed if the reply becomes too large."""
        if self._answering is None:
            raise NotAllowed("a part of no reply")
        self._answering.room -= size
        if self._answering.room < 0:
            raise NotAllowed(f"a reply of more than {self._largest_reply} bytes")

    def stored(self, asked: bytes, body: bytes) -> None:
        """Record Flower's response to a part; release the reply if it is now complete."""
        question = self._answering
        if question is None or not PushObjectResponse.FromString(body).stored:
            return
        question.missing.discard(PushObjectRequest.FromString(asked).object_id)
        self._held_back.hold(question.number)
        self._let_go_if_complete(question)

    def _let_go_if_complete(self, question: _Question) -> None:
        if not question.missing:
            self._held_back.let_go(question.number)
