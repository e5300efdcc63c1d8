"""Size and shape of the source, for the table in docs/results/house.md.

    python benchmarks/house.py                     # the working tree
    python benchmarks/house.py 49e88a2 HEAD        # revisions side by side

The figures are counted in the syntax trees of the files of a revision; nothing is imported.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
PACKAGE = PurePosixPath("src/privirec")
SMALL = 60
"""Lines of a module that is called small, and of a function that is not called long."""

Files = Mapping[PurePosixPath, str]


def working_tree() -> Files:
    """Return the Python files of the working tree."""
    found = (path for folder in ("src", "tests") for path in (ROOT / folder).rglob("*.py"))
    return {
        PurePosixPath(path.relative_to(ROOT).as_posix()): path.read_text(encoding="utf-8")
        for path in found
    }


def revision(name: str) -> Files:
    """Return the Python files of a git revision."""
    archive = subprocess.run(
        ["git", "archive", name, "src", "tests"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout
    found = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            content = tar.extractfile(member) if member.name.endswith(".py") else None
            if content is not None:
                found[PurePosixPath(member.name)] = content.read().decode()
    return found


def source(files: Files) -> Files:
    return {path: text for path, text in files.items() if path.is_relative_to(PACKAGE)}


def lines(files: Files, folder: str) -> int:
    return sum(text.count("\n") for path, text in files.items() if path.parts[0] == folder)


def packages(files: Files) -> int:
    """Return the number of packages directly below `privirec`."""
    return len(
        {path.parts[2] for path in source(files) if len(path.parts) > len(PACKAGE.parts) + 1}
    )


def nodes(files: Files, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
    """Yield all nodes of these kinds in the source."""
    for text in source(files).values():
        yield from (node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds))


def class_names(files: Files) -> Counter[str]:
    return Counter(node.name for node in nodes(files, ast.ClassDef))  # type: ignore[attr-defined]


def long_functions(files: Files) -> int:
    found = nodes(files, ast.FunctionDef, ast.AsyncFunctionDef)
    return sum(node.end_lineno - node.lineno >= SMALL for node in found)  # type: ignore[attr-defined]


def commands(files: Files) -> int:
    """Return the number of entries in the table of top-level commands."""
    (main,) = (path for path in source(files) if path.parts[-2:] == ("cli", "main.py"))
    for node in ast.parse(files[main]).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "COMMANDS":
            return len(node.value.keys)  # type: ignore[attr-defined]
    raise ValueError(f"{main} has no COMMANDS")


FIGURES: dict[str, Callable[[Files], int]] = {
    "lines of src": lambda files: lines(files, "src"),
    "lines of tests": lambda files: lines(files, "tests"),
    "modules": lambda files: len(source(files)),
    "packages": packages,
    "classes": lambda files: class_names(files).total(),
    "top-level commands": commands,
    f"modules of at most {SMALL} lines": lambda files: sum(
        text.count("\n") <= SMALL for text in source(files).values()
    ),
    "of these, `__init__`": lambda files: sum(
        text.count("\n") <= SMALL and path.name == "__init__.py"
        for path, text in source(files).items()
    ),
    f"functions over {SMALL} lines": long_functions,
    "class names used twice": lambda files: sum(count > 1 for count in class_names(files).values()),
}


def lines_by_package(files: Files) -> Counter[str]:
    """Return the lines of each package, and of the modules beside the packages as one."""
    found: Counter[str] = Counter()
    for path, text in source(files).items():
        inside = len(path.parts) > len(PACKAGE.parts) + 1
        found[f"`{path.parts[2]}`" if inside else "single modules"] += text.count("\n")
    return found


def main(names: list[str]) -> None:
    trees = [revision(name) for name in names] or [working_tree()]
    heads = names or ["working tree"]
    print("|".join(["", " ", *(f" {head} " for head in heads), ""]))
    print("|" + "---|" * (1 + len(heads)))
    for name, figure in FIGURES.items():
        print("|".join(["", f" {name} ", *(f" {figure(files):,} " for files in trees), ""]))
    by_package = [lines_by_package(files) for files in trees]
    for package in sorted({*by_package[0]}.union(*by_package)):
        figures = (f" {found[package]:,} " if found[package] else " - " for found in by_package)
        print("|".join(["", f" lines of {package} ", *figures, ""]))


if __name__ == "__main__":
    main(sys.argv[1:])
