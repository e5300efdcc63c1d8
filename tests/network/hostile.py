"""A client of the roster that means harm, on the wire: its own TLS, its own requests."""

from __future__ import annotations

import base64
import contextlib
import http.client
import os
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
)

FLEET = "/v1/fleet/"


@dataclass
class Hostile:
    """Speaks to the door of a server with the keys in a client's folder."""

    folder: Path
    address: tuple[str, int]
    node: int = 0
    heard: Counter[str] = field(default_factory=Counter)
    """How often it got which answer: "path status"."""

    def __post_init__(self) -> None:
        key = load_ssh_private_key((self.folder / "node.key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self._key = key
        self._tls = ssl.create_default_context(cafile=self.folder / "ca.crt")

    @property
    def public(self) -> bytes:
        return self._key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def headers(self, size: int) -> dict[str, str]:
        stamp = datetime.now(UTC).isoformat()
        signature = self._key.sign(stamp.encode(), ec.ECDSA(hashes.SHA256()))
        return {
            "content-type": "application/protobuf",
            "content-length": str(size),
            "flwr-public-key": base64.b64encode(self.public).decode(),
            "flwr-timestamp": stamp,
            "flwr-signature": base64.b64encode(signature).decode(),
        }

    def line(self) -> ssl.SSLSocket:
        raw = socket.create_connection(self.address, timeout=30)
        return self._tls.wrap_socket(raw, server_hostname=self.address[0])

    def post(self, name: str, body: bytes) -> tuple[int, bytes]:
        asking = http.client.HTTPSConnection(*self.address, context=self._tls, timeout=60)
        with contextlib.closing(asking):
            try:
                asking.request("POST", FLEET + name, body, self.headers(len(body)))
                answer = asking.getresponse()
                status, content = answer.status, answer.read()
            except (OSError, http.client.HTTPException):
                status, content = 0, b""  # cut off
        self.heard[f"{name} {status}"] += 1
        return status, content

    # --- as an honest one would -------------------------------------------------------------------

    def activate(self) -> None:
        from flwr.proto.fleet_pb2 import ActivateNodeRequest, ActivateNodeResponse

        body = ActivateNodeRequest(public_key=self.public, heartbeat_interval=60)
        status, content = self.post("activate-node", body.SerializeToString())
        assert status == 200, status
        self.node = ActivateNodeResponse.FromString(content).node_id

    def pull(self) -> list[Any]:
        from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse
        from flwr.proto.node_pb2 import Node

        body = PullMessagesRequest(node=Node(node_id=self.node)).SerializeToString()
        status, content = self.post("pull-messages", body)
        return list(PullMessagesResponse.FromString(content).messages_list) if status == 200 else []

    # --- and as no honest one does ----------------------------------------------------------------

    def flood(self, seconds: float, at_once: int) -> None:
        """As many requests as fit."""
        from flwr.proto.fleet_pb2 import PullMessagesRequest
        from flwr.proto.node_pb2 import Node

        body = PullMessagesRequest(node=Node(node_id=self.node)).SerializeToString()
        end = time.monotonic() + seconds

        def knock() -> None:
            while time.monotonic() < end:
                self.post("pull-messages", body)

        with ThreadPoolExecutor(at_once) as pool:
            for _ in range(at_once):
                pool.submit(knock)

    @contextlib.contextmanager
    def half_open(self, count: int) -> Iterator[list[ssl.SSLSocket]]:
        """Connections that say nothing, or begin a request and stop."""
        lines = []
        with contextlib.ExitStack() as open_lines:
            for number in range(count):
                with contextlib.suppress(OSError):
                    line = open_lines.enter_context(self.line())
                    line.sendall((b"", b"POST ", b"POST /v1/fleet/x HTTP/1.1\r\nA: ")[number % 3])
                    lines.append(line)
            yield lines

    @contextlib.contextmanager
    def slow(self, count: int) -> Iterator[None]:
        """Requests under its own name whose content comes a byte at a time."""
        over = threading.Event()

        def dawdle() -> None:
            with contextlib.suppress(OSError), self.line() as line:
                said = "".join(f"{key}: {value}\r\n" for key, value in self.headers(9999).items())
                line.sendall(f"POST {FLEET}get-run HTTP/1.1\r\nhost: x\r\n{said}\r\n".encode())
                while not over.wait(0.5):
                    line.sendall(b"x")

        with ThreadPoolExecutor(count) as pool:
            for _ in range(count):
                pool.submit(dawdle)
            try:
                yield
            finally:
                over.set()

    @contextlib.contextmanager
    def unfinished_heads(self, count: int, size: int) -> Iterator[None]:
        """Connections that stay open, each with so much of a head that does not end."""
        with contextlib.ExitStack() as open_lines:
            for _ in range(count):
                with contextlib.suppress(OSError):
                    line = open_lines.enter_context(self.line())
                    line.sendall(b"POST /v1/fleet/x HTTP/1.1\r\nA: ")
                    for _ in range(size >> 16):
                        line.sendall(b"a" * (1 << 16))
            yield

    def huge_head(self) -> bytes:
        """What comes back for a header of a megabyte."""
        with contextlib.suppress(OSError), self.line() as line:
            line.sendall(b"POST /v1/fleet/x HTTP/1.1\r\nA: ")
            with contextlib.suppress(OSError):
                for _ in range(16):
                    line.sendall(b"a" * (1 << 16))
            return line.recv(1 << 12)
        return b""

    def inject(self, question: Any, to: int) -> int:
        """A message to another client, in the server's name."""
        from flwr.proto.fleet_pb2 import PushMessagesRequest
        from flwr.proto.message_pb2 import ObjectTree
        from flwr.proto.node_pb2 import Node

        body = PushMessagesRequest(node=Node(node_id=self.node), messages_list=[question])
        said = body.messages_list[0].metadata
        said.message_id = os.urandom(32).hex()
        said.src_node_id, said.dst_node_id, said.reply_to_message_id = 1, to, ""
        body.message_object_trees.append(ObjectTree(object_id=said.message_id))
        return self.post("push-messages", body.SerializeToString())[0]

    def store_junk(self, question: Any, size: int, *, malformed: bool = False) -> int:
        """A reply of so many bytes that mean nothing; how many of them were taken. One that is
        malformed is no message at all, although it says so."""
        from flwr.app import Message
        from flwr.app.message import remove_content_from_message
        from flwr.common.serde import message_from_proto, message_to_proto
        from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
        from flwr.proto.message_pb2 import PushObjectRequest
        from flwr.proto.node_pb2 import Node
        from flwr.supercore.inflatable.inflatable_object import (
            get_all_nested_objects,
            get_object_tree,
        )

        from privirec.extra.flower.packing import pack

        reply = Message(pack(os.urandom(size)), reply_to=message_from_proto(question))
        root: Any = reply.content if malformed else reply
        reply.metadata.__dict__["_message_id"] = root.object_id
        node = Node(node_id=self.node)
        request = PushMessagesRequest(
            node=node,
            messages_list=[message_to_proto(remove_content_from_message(reply))],
            message_object_trees=[get_object_tree(root)],
        )
        status, content = self.post("push-messages", request.SerializeToString())
        if status != 200:
            return 0
        session, taken = PushMessagesResponse.FromString(content).session_id, 0
        for name, part in get_all_nested_objects(root).items():
            whole = part.deflate()
            one = PushObjectRequest(
                node=node,
                run_id=reply.metadata.run_id,
                object_id=name,
                object_content=whole,
                session_id=session,
            )
            if self.post("push-object", one.SerializeToString())[0] == 200:
                taken += len(whole)
        return taken
