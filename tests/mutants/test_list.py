"""The list of mutants fits the code: nothing in it is stale. (`make mutants` runs it.)"""

from __future__ import annotations

import importlib.util
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent.parent


def _runner() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutants_run", Path(__file__).parent / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


RUN = _runner()
MUTANTS = RUN.read_list()


def test_there_are_enough_of_them_and_everywhere() -> None:
    files = {mutant.file for mutant in MUTANTS}
    assert len(MUTANTS) >= 60
    for part in ("secagg/", "runtime/network/node/", "runtime/network/envelope.py", "privacy/"):
        assert any(file.startswith(part) for file in files), part


def test_every_mutant_has_its_place_and_its_tests() -> None:
    """All that is wrong at once: the list is long."""
    read = cache(lambda file: (ROOT / file).read_text(encoding="utf-8"))
    wrong = []
    for mutant in MUTANTS:
        source = mutant.source()
        if source is None:
            wrong.append(f"{mutant.name}: its text is not once in {mutant.file}")
        else:
            try:
                compile(source, mutant.file, "exec")
            except SyntaxError as error:
                wrong.append(f"{mutant.name}: {error}")
        for test in mutant.tests:
            file, _, name = test.partition("::")
            if not re.search(rf"^def {name}\(" if name else "", read(file), re.MULTILINE):
                wrong.append(f"{mutant.name}: there is no {test}")
        if not mutant.tests and not mutant.equivalent:
            wrong.append(f"{mutant.name}: no test is to notice it, and it is not equivalent")
    assert not wrong
