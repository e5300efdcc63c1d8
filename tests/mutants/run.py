"""Break the code in one place after the other, and see whether a test notices: `make mutants`.

`mutants.toml` holds the list. Each entry names a function and one change of it (`anchors.py` says
how), and the tests that are run with that change; one of them has to fail. The broken module is
compiled at import, so that no file changes and nothing else is compiled again. A process that has
imported the slow third-party modules, but nothing of this package, forks one child per mutant.

    killed      a test failed, as it should
    survived    all passed: write the test that fails
    stale       the place is gone, or there more than once, or a test is gone: mend the entry
    broken      the module cannot be imported like this: mend the entry
    timed out   no answer in time
    equivalent  the entry says why no test can fail; it is not run
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import importlib.util
import os
import signal
import sys
import tempfile
import time
import tomllib
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

from anchors import OPERATIONS, WITH_BY, Anchor, Stale, path_of

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SRC = ROOT / "src"
LIST = HERE / "mutants.toml"
SECONDS = 240
"""Time limit for the tests of one mutant."""
TOGETHER = 100
"""Number of tests that run at a time on the unchanged code."""
GOOD = ("killed", "equivalent")

# Third-party modules that are slow to import.
WARM = (
    *("numba", "scipy.sparse", "scipy.linalg", "scipy.stats", "safetensors.numpy", "sqlite3"),
    *("pydantic.main", "cryptography.x509", "cryptography.hazmat.primitives.ciphers.aead"),
    *("typer.testing", "rich.console", "unittest.mock", "hypothesis", "pytest"),
)
# Exit codes of pytest.
_ALL_PASSED, _SOME_FAILED, _NOT_COLLECTED, _NO_SUCH_TEST, _NO_TESTS = 0, 1, 2, 4, 5


@dataclass(frozen=True)
class Mutant:
    """One change, and the tests that have to notice it."""

    name: str
    anchor: Anchor
    tests: tuple[str, ...]
    equivalent: str = ""
    """Reason why no test can fail, if none can."""

    def code(self) -> CodeType:
        """Compile the module with the change, or raise `Stale`."""
        path = path_of(self.anchor.resolve())
        return compile(self.anchor.tree(), path, "exec", dont_inherit=True)


def read_list(path: Path = LIST) -> list[Mutant]:
    with path.open("rb") as file:
        entries: list[dict[str, Any]] = tomllib.load(file)["mutant"]
    mutants = [_read_entry(entry, path) for entry in entries]
    doubled = [name for name, count in Counter(m.name for m in mutants).items() if count > 1]
    if doubled:
        sys.exit(f"{path}: two mutants are called {doubled[0]!r}")
    return mutants


def _read_entry(entry: dict[str, Any], path: Path) -> Mutant:
    asked = [operation for operation in OPERATIONS if operation in entry]
    others = set(entry) - {*OPERATIONS, "name", "in", "by", "nth", "tests", "equivalent"}
    if len(asked) != 1 or others or (asked[0] in WITH_BY) != ("by" in entry):
        sys.exit(f"{path}: {entry.get('name')!r} has not one operation and what belongs to it")
    anchor = Anchor(
        entry["in"], asked[0], entry[asked[0]], entry.get("by", ""), entry.get("nth", "")
    )
    return Mutant(entry["name"], anchor, tuple(entry["tests"]), entry.get("equivalent", ""))


class _Broken(importlib.abc.MetaPathFinder, importlib.machinery.SourceFileLoader):
    """Importer of one module from code that is in no file."""

    def __init__(self, module: str, code: CodeType) -> None:
        super().__init__(module, str(path_of(module)))
        self._module, self._code = module, code

    def find_spec(
        self, fullname: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._module:
            return None
        return importlib.util.spec_from_file_location(fullname, self.path, loader=self)

    def get_code(self, fullname: str) -> CodeType:
        return self._code


def run_tests(tests: tuple[str, ...], mutant: Mutant | None, folder: Path) -> int:
    """Run pytest in a separate process and return its exit code; output goes to `folder`/said."""
    said = os.open(folder / "said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(folder / "hypothesis")
    os.environ.setdefault("PRIVIREC_EXAMPLES", "25")
    sys.path.insert(0, str(SRC))
    if mutant is not None:
        sys.meta_path.insert(0, _Broken(mutant.anchor.resolve(), mutant.code()))
    import pytest

    os.chdir(ROOT)
    options = ["-x", "-q", "--tb=line", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", ""]
    # Imported earlier on purpose.
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    options += [f"--basetemp={folder / 'tmp'}", "--show-capture=no"]
    return int(pytest.main([*options, *tests]))


class Child:
    """A forked process that runs the tests of one mutant, or of the unchanged code."""

    def __init__(self, tests: tuple[str, ...], mutant: Mutant | None = None) -> None:
        self.mutant = mutant
        self.began = time.monotonic()
        memory_disk = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108
        self._folder = tempfile.TemporaryDirectory(prefix="mutant-", dir=memory_disk)
        self.pid = os.fork()
        if self.pid == 0:
            os.setpgid(0, 0)  # so that it can be ended together with its child processes
            code = 70
            try:
                code = run_tests(tests, mutant, Path(self._folder.name))
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)

    @property
    def said(self) -> list[str]:
        path = Path(self._folder.name) / "said"
        return path.read_text(encoding="utf-8", errors="replace").splitlines()

    @property
    def failed(self) -> str:
        """Return the first test that failed."""
        lines = [line for line in self.said if line.startswith(("FAILED ", "ERROR "))]
        return lines[0].split(" - ")[0].split(" ", 1)[1] if lines else ""

    def end(self) -> None:
        os.killpg(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def clear(self) -> None:
        self._folder.cleanup()


def outcome_of(code: int, child: Child) -> str:
    if code == _SOME_FAILED:
        return "killed"
    if code == _ALL_PASSED:
        return "survived"
    return "stale" if code in (_NO_SUCH_TEST, _NO_TESTS) else "broken"


def run_all(work: list[tuple[tuple[str, ...], Mutant | None]], jobs: int, report: Any) -> None:
    """Run a limited number at a time; call `report(child, outcome)` when each ends."""
    waiting = list(reversed(work))
    running: dict[int, Child] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            child = Child(*waiting.pop())
            running[child.pid] = child
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in running:
            child = running.pop(pid)
            report(child, outcome_of(os.waitstatus_to_exitcode(status), child))
            child.clear()
            continue
        for late in [one for one in running.values() if time.monotonic() - one.began > SECONDS]:
            late.end()
            del running[late.pid]
            report(late, "timed out")
            late.clear()
        time.sleep(0.02)


def check_tests(mutants: list[Mutant], jobs: int) -> None:
    """Check that all named tests pass on the unchanged code; otherwise a kill would mean
    nothing."""
    named = sorted({test for mutant in mutants if not mutant.equivalent for test in mutant.tests})
    bad: list[str] = []

    def report(child: Child, outcome: str) -> None:
        if outcome != "survived":
            bad.extend([*child.said[-8:], outcome.replace("killed", "failed")])

    # No part is empty, as pytest would run everything, or too large to end in time.
    count = min(len(named), max(jobs, -(-len(named) // TOGETHER)))
    parts = [tuple(named[start::count]) for start in range(count)]
    run_all([(part, None) for part in parts], jobs, report)
    if bad:
        print("\n".join(bad))
        sys.exit("the named tests do not pass as things are, or are not there: no mutant was run")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="Mutants by (part of) their names; all without.")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--unchecked", action="store_true", help="Do not run the tests without a mutant first."
    )
    parser.add_argument("--verbose", action="store_true", help="Say which test noticed.")
    asked = parser.parse_args()
    mutants = [
        mutant
        for mutant in read_list()
        if not asked.names or any(name in mutant.name for name in asked.names)
    ]
    for module in WARM:
        importlib.import_module(module)
    began = time.monotonic()
    found: Counter[str] = Counter()

    def tell(mutant: Mutant, outcome: str, more: str = "") -> None:
        found[outcome] += 1
        if outcome not in GOOD or asked.verbose:
            print(f"{outcome:10} {mutant.name}{': ' + more if more else ''}", flush=True)

    work: list[tuple[tuple[str, ...], Mutant | None]] = []
    for mutant in mutants:
        try:
            mutant.anchor.tree()
        except Stale as why:
            tell(mutant, "stale", str(why))
            continue
        if mutant.equivalent:
            tell(mutant, "equivalent", mutant.equivalent)
        else:
            work.append((mutant.tests, mutant))
    if not asked.unchecked:
        check_tests(mutants, asked.jobs)

    def report(child: Child, outcome: str) -> None:
        assert child.mutant is not None
        more = child.failed if outcome == "killed" else " ".join(child.mutant.tests)
        if outcome == "broken":
            more = " | ".join(child.said[-6:])
        tell(child.mutant, outcome, f"{more} ({time.monotonic() - child.began:.1f} s)")

    run_all(work, asked.jobs, report)
    counted = ", ".join(f"{count} {outcome}" for outcome, count in found.most_common())
    print(f"{len(mutants)} mutants: {counted}; {time.monotonic() - began:.0f} s.")
    sys.exit(any(outcome not in GOOD for outcome in found))


if __name__ == "__main__":
    main()
