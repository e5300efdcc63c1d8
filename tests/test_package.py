"""Tests of the wheel: it installs without a network and contains all that the program needs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import privirec
from privirec.app.doctor import PACKAGES, facts

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "privirec"
PART_OF = {"llvmlite": "numba"}
"""Packages that are part of a declared dependency: llvmlite, for the types of intrinsics."""
USED_EXTRAS = ("parquet", "frames", "flower")
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]


def _run(*command: str | Path) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.check
def test_a_wheel_is_installed_and_works_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    offline = ["--no-deps", "--no-index"]
    _run(*PIP, "wheel", *offline, "--no-build-isolation", "--wheel-dir", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        inside = {name for name in packed.namelist() if name.startswith("privirec/")}
    files = {
        f"privirec/{path.relative_to(PACKAGE).as_posix()}"
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert inside == files

    monkeypatch.delenv("PYTHONPATH", raising=False)  # what runs below comes from the wheel
    home = tmp_path / "fresh"
    venv.create(home, with_pip=False, symlinks=True)
    fresh = home / "bin" / "python"
    _run(*PIP, "--python", fresh, "install", *offline, wheel)
    (packages,) = home.glob("lib/python*/site-packages")
    # Dependencies come from this environment; its own privirec, if any, is found after the wheel.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = _run(fresh, "-c", "import privirec; print(privirec.__file__)").strip()
    assert Path(where).is_relative_to(home)
    command = home / "bin" / "privirec"
    assert "Commands" in _run(command, "--help")
    assert re.search(r"items +300\b", _run(command, "data", "info", "synthetic:small"))
    _run(command, "device", "add", "3", "17", "--store", "me.db")
    assert "2 interactions" in _run(command, "device", "show", "--store", "me.db")
    pages = "from privirec.app.pages import frame, web; import privirec.app.pages.person"
    _run(fresh, "-c", pages)


def test_nothing_tells_people_to_fetch_us_from_an_index() -> None:
    """Test that no page says `pip install privirec`, which would install anything under that
    name."""
    asked = re.compile(r"pip install[^`\n]*")
    texts = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("docs/**/*.ipynb")]
    texts += [*ROOT.glob("benchmarks/*"), *PACKAGE.rglob("*.py")]
    assert len(texts) > 100
    for path in texts:
        if path.is_file():
            for command in asked.findall(path.read_text(encoding="utf-8")):
                by_name = re.search(r"\bprivirec\b", command)
                assert not by_name or "--no-index" in command, f"{path}: {command}"


def test_everything_that_is_imported_is_declared() -> None:
    """Test that every import is declared: a dependency may drop its own dependencies."""
    imported = {
        name.split(".")[0]
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in _named(node)
    }
    others = imported - sys.stdlib_module_names - {"privirec"}
    assert "numpy" in others
    assert {PART_OF.get(name, name.replace("_", "-")) for name in others} - set(declared()) == set()


def test_the_doctor_knows_everything_that_is_declared() -> None:
    assert list(PACKAGES) == declared()
    assert not {"numpy", "uvicorn", "httpx"} & {
        name for name, value in facts().items() if value == "not installed"
    }


def declared() -> list[str]:
    """Return the packages that the project needs, and those of its extras, in their order."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    return [
        re.split(r"[^A-Za-z0-9_-]", line)[0].lower()
        for lines in (project["dependencies"], *(extras[name] for name in USED_EXTRAS))
        for line in lines
    ]


def _named(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [one.name for one in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module else []


PAGES = ("README.md", "docs/tutorials/library.md", "docs/tutorials/notebook.ipynb")


@pytest.mark.parametrize("page", PAGES)
def test_pages_for_users_import_only_names_that_are_promised(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8").replace('\\n"', "").replace('"', "")
    imports = re.findall(r"^\s*from (privirec[\w.]*) import ([^\n(#]+)", text, re.M)
    assert imports
    for module, names in imports:
        assert module == "privirec", f"{page}: {module} is not promised"
        assert {name.strip().rstrip(",") for name in names.split(",")} - {""} <= set(
            privirec.__all__
        )
    assert "import privirec." not in text


def test_readme_shows_the_best_exact_figure_beside_the_private_one() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| ") and "%" not in line
    ]
    (head,) = [row for row in rows if "protected, epsilon 1" in row]
    exact, private = head.index("best exact model, no privacy"), head.index("protected, epsilon 1")
    figures = [row for row in rows if len(row) == len(head) and row is not head]
    assert len(figures) >= 3
    for row in figures:
        best, ours = float(row[exact].split()[0]), float(row[private].split()[0])
        others = [float(cell) for cell in row[2:] if re.fullmatch(r"0\.\d+", cell)]
        assert best > max(ours, *others)
