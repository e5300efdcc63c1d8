"""Interrupted commands: exit code, message and clean-up."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

BEGINNING = """
import signal, sys, weakref
from privirec.app.cli.ending import end_well

# As at a terminal. A shell starts what goes to the background (`make test &`) deaf to Ctrl-C, and
# every child inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)

def interrupt(number=signal.SIGINT):
    signal.raise_signal(number)  # to this thread, so that Python handles it before it goes on
"""


def ended(program: str) -> tuple[int, str, str]:
    command = [sys.executable, "-c", BEGINNING + textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_an_interruption_prints_one_line_and_cleans_up(name: str, code: int) -> None:
    """Test repeated interruptions too."""
    found = ended(
        f"""
        def command():
            try:
                interrupt(signal.{name})
                print("went on")
            finally:
                interrupt()
                interrupt(signal.SIGTERM)
                print("put away")
        end_well(command)
        """
    )
    assert found == (code, "put away\n", "privirec: interrupted\n")


def test_one_that_is_lost_is_followed_by_one_that_counts() -> None:
    """Python discards exceptions raised in the callback of a weak reference."""
    code, said, errors = ended(
        """
        class Thing: pass

        def command():
            thing = Thing()
            reference = weakref.ref(thing, lambda _: interrupt())
            del thing
            print("the first was lost")
            interrupt()
            print("and so was the second")
        end_well(command)
        """
    )
    assert (code, said) == (130, "the first was lost\n")
    assert errors.endswith("privirec: interrupted\n")


@pytest.mark.parametrize(
    "arguments", [["client", "up", "--help"], ["data", "--help"], ["client", "up", "x"]]
)
def test_while_modules_are_imported_it_is_one_line_too(arguments: list[str]) -> None:
    code, said, errors = ended(
        f"""
        class Finder:
            def find_spec(self, name, path=None, target=None):
                if name in ("privirec.app.cli.client", "privirec.app.cli.data", "pydantic"):
                    interrupt()
        sys.meta_path.insert(0, Finder())
        sys.argv = ["privirec", *{arguments}]
        from privirec.app.cli import start
        start()
        """
    )
    assert (code, said, errors) == (130, "", "privirec: interrupted\n")
