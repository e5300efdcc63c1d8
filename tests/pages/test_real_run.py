"""Tests of both pages after a real run, and of the commands that serve them as processes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from privirec.app.budget import statement_of
from privirec.app.own_device import OwnDevice
from privirec.app.pages.operator import OperatorSite
from privirec.app.pages.person import PersonSite
from privirec.device import Installed

from .small_federation import SmallFederation
from .visitor import Visitor, serving

pytestmark = pytest.mark.check


def test_a_run_with_noise_on_both_pages(federation: SmallFederation) -> None:
    folder = federation.person.folder
    (row,) = statement_of(folder).rows
    assert row["state"] == "finished"
    assert row["bytes_up"] > 1000
    model = sum(file.stat().st_size for file in Installed(folder / "model").current().iterdir())
    assert row["bytes_down"] > model > 1000
    assert 3.9 < row["epsilon"] <= 4.0
    with serving(PersonSite(OwnDevice.at(folder))) as server:
        visitor = Visitor(server).enter()
        assert "Because of" in visitor.look().words
        answer = visitor.look("left")
    for words in (
        *("noisy-popularity", "noisy-power-step", row["run"], row["server"], "finished"),
        *("fed.example:9443", "epsilon 4 of 20", "epsilon 4 of 9", "% used, room for"),
        "Promised to every person: epsilon 4",
        "never what a single device sent, even if it lies, as long as no more than 5% of the",
        "the server learns the sum and nothing else, even if it lies, as long as no more than 5%",
    ):
        assert words in answer.words
    assert "4 times your part of a total" in answer.words or "2 times" in answer.words
    year = next(use for use in statement_of(folder).uses if use.setting != "most_epsilon")
    assert f'aria-valuenow="{year.percent}"' in answer.text
    assert 20 < year.percent < 35  # (level of epsilon 4 / level of epsilon 9) squared
    with serving(OperatorSite(federation.server)) as server:
        visitor = Visitor(server).enter()
        words = visitor.look("run?name=monday").words
        for told in (
            "done",
            "Ada's telephone 0 installed 1",
            "Promised to every person: epsilon 4",
        ):
            assert told in words
        assert "has spent epsilon 3.99" in visitor.look("runs").words
        visitor.look("start")
        visitor.change("start", name="later", method="protected", aggregator="secagg+")
        for _ in range(600):
            words = visitor.look().words
            if "later: started." not in words:
                break
            time.sleep(0.1)
        assert "later: privirec: " in words  # no server is up, or Flower is not installed


def test_the_command_prints_the_address_and_ends_on_request(client: Path) -> None:
    command = [sys.executable, "-m", "privirec", "device", "page", str(client)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as page:
        assert page.stdout is not None
        address = page.stdout.readline().removeprefix("Open ").strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{43}", address)
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with opener.open(address, timeout=60) as answer:
            assert "For you" in answer.read().decode()
            assert "token" not in answer.url
        page.send_signal(signal.SIGINT)
        assert page.wait(60) == 130
