"""Tests of a vector's way over HTTPS: how often it is framed, signed and written."""

from __future__ import annotations

import builtins
import os
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from privirec.codec import Frame
from privirec.runtime import envelope
from privirec.runtime.coordinator import Stage
from privirec.runtime.https.signing import Request
from privirec.runtime.messages import Vector
from privirec.secagg.keys import Identity

from .chaos import Federation, Trouble
from .https_chaos import LIMITS, HttpsChaos


class Counted:
    """Everything in a run that frames, signs or writes a vector."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.frames: Counter[str] = Counter()
        self.signed: Counter[bytes] = Counter()
        self.methods: Counter[str] = Counter()
        self.written: dict[str, bytes] = defaultdict(bytes)
        """Path of a file -> all bytes written to it."""
        head, sign, signed, opened = Frame.head, Identity.sign, Request.signed, builtins.open

        def framing(frame: Frame, header: Any) -> bytes:
            self.frames[str(header.get("kind"))] += 1
            return head(frame, header)

        def signing(identity: Identity, statement: bytes) -> bytes:
            self.signed[statement] += 1
            return sign(identity, statement)

        def requesting(request: Request, *more: Any) -> Request:
            self.methods[request.method] += 1
            return signed(request, *more)

        def opening(file: Any, mode: str = "r", *more: Any, **given: Any) -> Any:
            found = opened(file, mode, *more, **given)
            if "w" in mode:
                path = os.readlink(f"/proc/self/fd/{found.fileno()}")
                write, lines = found.write, found.writelines
                found = _Watched(found)
                found.write = lambda data: self._note(path, data) or write(data)
                found.writelines = lambda many: lines(self._noted(path, many))
            return found

        monkeypatch.setattr(Frame, "head", framing)
        monkeypatch.setattr(Identity, "sign", signing)
        monkeypatch.setattr(Request, "signed", requesting)
        monkeypatch.setattr(builtins, "open", opening)

    def _note(self, path: str, data: bytes) -> None:
        if isinstance(data, bytes | memoryview):
            self.written[path] += bytes(data)

    def _noted(self, path: str, many: Any) -> Any:
        for data in many:
            self._note(path, data)
            yield data


class _Watched:
    """File whose methods can be replaced."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _Watched:
        self._file.__enter__()
        return self

    def __exit__(self, *why: Any) -> None:
        self._file.__exit__(*why)


def test_a_vector_is_framed_and_signed_once_and_written_once_on_each_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = Federation(tmp_path)
    chaos = HttpsChaos(federation, 1, Trouble())
    chaos.server_up.mailbox.limits = replace(LIMITS, in_memory=0)  # answers go to files
    counted = Counted(monkeypatch)
    outcome = chaos.run()
    monkeypatch.undo()
    assert outcome.stage is Stage.DONE
    vectors = set()
    for message in outcome.messages:
        try:
            if isinstance(envelope.peek(message, "to-server").message, Vector):
                vectors.add(message)
        except envelope.BadEnvelope:
            continue  # a message of the server
    assert len(vectors) == 6 * 3  # clients and sums
    assert counted.frames["vector"] == len(vectors)
    assert "PATCH" not in counted.methods
    for message in vectors:
        (packed,) = envelope.peek(message, "to-server").parts
        statement = envelope.statement("to-server", envelope.seal_of(message)[0])
        assert counted.signed[statement] == 1
        files = [path for path, content in counted.written.items() if bytes(packed) in content]
        assert len(files) == 2, files
        assert [content.count(message) for content in map(counted.written.get, files)] == [1, 1]
        sides = {path.removeprefix(str(tmp_path)).split("/")[1] for path in files}
        assert sides == {f"client-{envelope.peek(message, 'to-server').client}", "spool"}
