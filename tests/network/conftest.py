"""Fixtures: every test of the network checks every text that leaves a client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from privirec.runtime.messages import Message
from privirec.runtime.node import Node

from .chaos import PLANTED_ITEM, PLANTED_USER


@pytest.fixture(autouse=True)
def _nothing_private_leaves(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail if a text reveals a path, an item, a user or a deletion, even after an error."""
    sealed = Node._seal
    private: list[str] = []

    def seal(node: Node, run: str, message: Message, *parts: bytes) -> bytes:
        text = message.model_dump_json()
        for word in (str(node._folder), "history.db", "forg", PLANTED_ITEM, PLANTED_USER):
            if word in text.replace("forged", ""):
                private.append(text)
        return sealed(node, run, message, *parts)

    monkeypatch.setattr(Node, "_seal", seal)
    yield
    assert not private, private
