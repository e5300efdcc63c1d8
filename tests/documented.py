"""Run documentation pages as scripts: every block marked `sh` or `python`, in order. Also list the
commands that a page names."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parent.parent
_BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
_FENCED = re.compile(r"^```.*?^```$", flags=re.DOTALL | re.MULTILINE)
_SPAN = re.compile(
    r"`(privirec [^`]+|(?:server|device|data|paper) [a-z-]+(?: [^`]+)?"
    r"|client (?:new|rotate|join|roster|up|budget|policy)(?: [^`]+)?)`"
)
_SHOWN = re.compile(r"^(?:\$ |To run it: | {4})?(privirec .*)$", flags=re.MULTILINE)


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return language and text of each block to run."""
    return _BLOCK.findall(page.read_text(encoding="utf-8"))


def lines_of(block: str) -> list[str]:
    """Return the lines of a shell block, with continued lines joined."""
    return [line for line in block.replace("\\\n", " ").splitlines() if line.strip()]


def commands_of(page: Path) -> list[list[str]]:
    """Return the words of every `privirec` command of a page, in blocks and in running text."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    running = _FENCED.sub("", text).replace("\n", " ")
    named = [*_SHOWN.findall(text), *_SPAN.findall(running)]
    return [words for line in named if (words := _words(line))]


def _words(line: str) -> list[str]:
    """Return the words up to a redirection, a pipe or an ellipsis."""
    words = [word.strip("[]") for word in shlex.split(line, comments=True)]
    ends = [n for n, word in enumerate(words) if word in {">", "&", "|", ";", "..."}]
    words = words[: min(ends, default=len(words))]
    return words[1:] if words[0] == "privirec" else words


def script_of(page: Path) -> str:
    """Return one shell script; consecutive Python blocks become one program in it."""
    return "set -eu\n" + "".join(_segments(page))


def _segments(page: Path) -> Iterator[str]:
    for language, group in groupby(blocks(page), key=lambda block: block[0]):
        text = "".join(block for _, block in group)
        yield text if language == "sh" else f"python - <<'END_OF_PYTHON'\n{text}END_OF_PYTHON\n"


def run_script(script: str, folder: Path, seconds: int) -> str:
    """Run a script with this environment's programs and return its output; end all its
    processes."""
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    running = subprocess.Popen(
        ["bash", "-c", script],
        cwd=folder,
        env=os.environ | {"PATH": programs, "COLUMNS": "120"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # so that processes it leaves behind can be ended too
    )
    try:
        said, _ = running.communicate(timeout=seconds)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGTERM)
    assert running.returncode == 0, said
    return said
