"""The list of mutants fits the code: nothing in it is stale. (`make mutants` runs it.)"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

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


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_has_its_place_and_its_tests(mutant) -> None:  # type: ignore[no-untyped-def]
    source = mutant.source()
    assert source is not None, f"its text is not once in {mutant.file}"
    compile(source, mutant.file, "exec")
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert re.search(rf"^def {name}\(" if name else "", (ROOT / file).read_text(), re.M), test
    assert mutant.tests or mutant.equivalent
