"""Tests of downloads from a local server: complete, resumed, truncated, wrong and refused."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from privirec.data.datasets import PUBLISHED, PublishedDataset, PublishedFile
from privirec.data.download import download
from privirec.errors import DataError, UsageError

CONTENT = {
    "train.txt": b"".join(b"%d %d %d\n" % (user, user, user + 1) for user in range(3000)),
    "test.txt": b"".join(b"%d %d\n" % (user, user + 2) for user in range(3000)),
}


class Server(ThreadingHTTPServer):
    """Server of CONTENT as /data/gowalla/...; its attributes make it misbehave."""

    daemon_threads = True
    ranges = True
    wrong_range = False
    stop_after: int | None = None
    corrupt = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, str | None, int]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/data"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        name = self.path.rsplit("/", 1)[-1]
        if not self.path.startswith("/data/gowalla/") or name not in CONTENT:
            self.server.requests.append((self.path, asked, 404))
            self.send_error(404)
            return
        body = CONTENT[name]
        if self.server.corrupt:
            body = body.replace(b"7", b"8")
        start, status = 0, 200
        if asked and self.server.ranges:
            start, status = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]), 206  # type: ignore[index]
            if start >= len(body):
                status = 416
        self.server.requests.append((name, asked, status))
        self.send_response(status)
        if status == 416:
            self.send_header("Content-Range", f"bytes */{len(body)}")
            self.end_headers()
            return
        if status == 206:
            first = start - 1 if self.server.wrong_range else start
            self.send_header("Content-Range", f"bytes {first}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        stop = len(body) if self.server.stop_after is None else start + self.server.stop_after
        self.wfile.write(body[start:stop])

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    files = {
        name: PublishedFile(hashlib.md5(body, usedforsecurity=False).hexdigest())
        for name, body in CONTENT.items()
    }
    monkeypatch.setitem(PUBLISHED, "gowalla", PublishedDataset(3000, 3002, 6000, 3000, files))  # type: ignore[arg-type]
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (folder / "gowalla").iterdir()}


def test_whole(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    folder = download(
        "gowalla", tmp_path, source=server.url, progress=lambda *step: seen.append(step)
    )
    assert folder == tmp_path / "gowalla"
    assert contents(tmp_path) == CONTENT
    for name, body in CONTENT.items():
        steps = [step for step in seen if step[0] == name]
        assert steps[-1] == (name, len(body), len(body))


def test_again_fetches_nothing(server: Server, tmp_path: Path) -> None:
    download("gowalla", tmp_path, source=server.url)
    server.requests.clear()
    download("gowalla", tmp_path, source=server.url)
    assert server.requests == []


def test_default_place_is_the_cache(server: Server, tmp_path: Path) -> None:
    assert download("gowalla", source=server.url) == tmp_path / "cache/privirec/data/gowalla"


def test_truncated_then_resumed(server: Server, tmp_path: Path) -> None:
    server.stop_after = 10_000
    with pytest.raises(DataError, match=r"ended after 10,000 of [\d,]+ bytes.*again to resume"):
        download("gowalla", tmp_path, source=server.url)
    assert contents(tmp_path) == {"train.txt.part": CONTENT["train.txt"][:10_000]}
    server.stop_after = None
    download("gowalla", tmp_path, source=server.url)
    assert contents(tmp_path) == CONTENT
    assert [request for request in server.requests if request[0] == "train.txt"] == [
        ("train.txt", None, 200),
        ("train.txt", "bytes=10000-", 206),
    ]


@pytest.mark.parametrize("part", [CONTENT["train.txt"][:500], b"garbage" * 20_000])
def test_server_without_ranges_starts_over(server: Server, tmp_path: Path, part: bytes) -> None:
    server.ranges = False
    (tmp_path / "gowalla").mkdir()
    (tmp_path / "gowalla" / "train.txt.part").write_bytes(part)
    download("gowalla", tmp_path, source=server.url)
    assert contents(tmp_path) == CONTENT


def test_complete_part_is_accepted(server: Server, tmp_path: Path) -> None:
    """Test an interruption between the last byte and the rename."""
    (tmp_path / "gowalla").mkdir()
    (tmp_path / "gowalla" / "train.txt.part").write_bytes(CONTENT["train.txt"])
    download("gowalla", tmp_path, source=server.url)
    assert contents(tmp_path) == CONTENT
    assert server.requests[0][2] == 416


@pytest.mark.parametrize("size", [500, 500_000])
def test_wrong_beginning_starts_over(server: Server, tmp_path: Path, size: int) -> None:
    (tmp_path / "gowalla").mkdir()
    (tmp_path / "gowalla" / "train.txt.part").write_bytes(b"x" * size)
    download("gowalla", tmp_path, source=server.url)
    assert contents(tmp_path) == CONTENT


def test_wrong_checksum_leaves_nothing(server: Server, tmp_path: Path) -> None:
    server.corrupt = True
    with pytest.raises(DataError, match=r"train\.txt: what arrived is not the published file"):
        download("gowalla", tmp_path, source=server.url)
    assert contents(tmp_path) == {}


def test_wrong_range_is_noticed(server: Server, tmp_path: Path) -> None:
    server.wrong_range = True
    (tmp_path / "gowalla").mkdir()
    (tmp_path / "gowalla" / "train.txt.part").write_bytes(CONTENT["train.txt"][:500])
    with pytest.raises(DataError, match="another range"):
        download("gowalla", tmp_path, source=server.url)
    assert contents(tmp_path) == {"train.txt.part": CONTENT["train.txt"][:500]}


def test_other_file_in_place_needs_force(server: Server, tmp_path: Path) -> None:
    (tmp_path / "gowalla").mkdir()
    (tmp_path / "gowalla" / "train.txt").write_bytes(b"0 1\n")
    with pytest.raises(DataError, match="not the published file; replace: --force"):
        download("gowalla", tmp_path, source=server.url)
    assert contents(tmp_path) == {"train.txt": b"0 1\n"}
    download("gowalla", tmp_path, source=server.url, force=True)
    assert contents(tmp_path) == CONTENT


def test_not_there(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="could not be downloaded"):
        download("gowalla", tmp_path, source=server.url + "/elsewhere")


def test_no_network_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as closed:
        address = f"http://127.0.0.1:{closed.server_address[1]}"
    with pytest.raises(DataError) as caught:
        download("yelp2018", tmp_path, source=address)
    message = str(caught.value)
    assert "\n" not in message
    assert f"put train.txt and test.txt from {address}/yelp2018 into {tmp_path}/yelp2018" in message


def test_refuses_other_names_and_addresses(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="known are gowalla"):
        download("netflix", tmp_path)
    with pytest.raises(UsageError, match="not a web address"):
        download("gowalla", tmp_path, source="file:///etc")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be created"):
        download("gowalla", tmp_path / "file")
