"""Tests of the loop that drives a run: polling all clients leaves time to answer them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from privirec.runtime.carrier import GIVE_WAY, LONGEST_GIVEN, carry
from privirec.runtime.coordinator import Stage


class SlowToLookAt:
    """Coordinator with a large number of clients, so that one poll of all of them takes a while."""

    stage = Stage.GATHERING

    def __init__(self, look: float, replies: int) -> None:
        self.now = 0.0
        self.looks: list[float] = []
        self.received: list[float] = []
        self._look, self._replies = look, replies

    @property
    def finished(self) -> bool:
        return len(self.received) == self._replies

    def connected(self, addresses: Any) -> None: ...

    def outgoing(self) -> Iterator[tuple[int, bytes]]:
        return iter(())

    def receive(self, address: Any, message: bytes) -> None:
        self.received.append(self.now)

    def tick(self) -> None:
        self.looks.append(self.now)
        self.now += self._look

    # --- a carrier that delivers one reply every hundredth of a second ----------------------------

    def arrivals(self) -> Iterator[tuple[int, bytes]]:
        if not self.finished:
            self.now += 0.01
            yield 0, b"reply"

    def is_idle(self) -> bool:
        return True

    def rest(self) -> None:
        self.now += 0.001


def driven(look: float, replies: int = 200) -> SlowToLookAt:
    both = SlowToLookAt(look, replies)
    carry(both, _Carrier(both), lambda _: Path(), clock=lambda: both.now)  # type: ignore[arg-type]
    return both


class _Carrier:
    largest_reply = 1 << 40

    def __init__(self, of: SlowToLookAt) -> None:
        self.arrivals, self.is_idle, self.rest = of.arrivals, of.is_idle, of.rest

    def connected(self) -> list[int]:
        return []

    def send(self, address: Any, message: bytes) -> bool:
        return True


@pytest.mark.parametrize("look", [0.05, 0.2])
def test_most_of_the_time_is_for_the_clients(look: float) -> None:
    run = driven(look, replies=2000)
    looking = look * len(run.looks)
    assert looking <= 1.2 * run.now / (1 + GIVE_WAY)
    assert len(run.looks) > 3, "but it looks"


def test_a_long_computation_is_not_followed_by_a_long_rest() -> None:
    run = driven(60.0)
    gaps = [after - before - 60.0 for before, after in zip(run.looks, run.looks[1:], strict=False)]
    assert max(gaps) <= LONGEST_GIVEN + 0.1


def test_a_small_federation_is_looked_at_with_every_reply() -> None:
    assert len(driven(0.0, replies=50).looks) >= 50
