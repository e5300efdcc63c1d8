"""Tests of saved models: atomic writes, and refusal of damaged or forged files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from privirec.data import Interactions
from privirec.durable import file_sha256
from privirec.errors import ArtifactError, UsageError
from privirec.filters import Components, LowRankOperator, centralized
from privirec.models import GFCF, Recommender, artifact

Damage = Callable[[Path], None]


@pytest.fixture
def saved(holes: Interactions, tmp_path: Path) -> Path:
    return GFCF(rank=3).fit(holes).save(tmp_path / "saved")


def arrays(change: Callable[[dict[str, NDArray]], None]) -> Damage:
    """Change arrays as a forger would, who repairs the hash."""

    def damage(folder: Path) -> None:
        tensors = dict(load_file(folder / artifact.ARRAYS))
        change(tensors)
        save_file(tensors, folder / artifact.ARRAYS)
        manifest(sha256=file_sha256(folder / artifact.ARRAYS))(folder)

    return damage


def tensor(name: str, change: Callable[[NDArray], Any]) -> Damage:
    return arrays(lambda tensors: tensors.update({name: np.array(change(tensors[name]))}))


def without(name: str) -> Damage:
    return arrays(lambda tensors: tensors.__delitem__(name))


def manifest(**changes: Any) -> Damage:
    """Change entries of the manifest; None removes an entry."""

    def damage(folder: Path) -> None:
        record = json.loads((folder / artifact.MANIFEST).read_text()) | changes
        kept = {name: value for name, value in record.items() if value is not None}
        (folder / artifact.MANIFEST).write_bytes(artifact.canonical(kept))

    return damage


def file(name: str, change: Callable[[bytes], bytes]) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).write_bytes(change((folder / name).read_bytes()))

    return damage


def nonsense(folder: Path) -> None:
    file(artifact.ARRAYS, lambda content: b"x" * 100)(folder)
    manifest(sha256=file_sha256(folder / artifact.ARRAYS))(folder)


def swap_end(values: NDArray, value: int) -> NDArray:
    return np.concatenate([values[:-1], np.array([value], values.dtype)])


DAMAGES: dict[str, Damage] = {
    "no folder": shutil.rmtree,
    "no manifest": lambda folder: (folder / artifact.MANIFEST).unlink(),
    "no arrays": lambda folder: (folder / artifact.ARRAYS).unlink(),
    "truncated arrays": file(artifact.ARRAYS, lambda content: content[:-10]),
    "empty arrays": file(artifact.ARRAYS, lambda content: b""),
    "one bit of the arrays": file(
        artifact.ARRAYS, lambda content: content[:-1] + bytes([content[-1] ^ 1])
    ),
    "truncated manifest": file(artifact.MANIFEST, lambda content: content[:-10]),
    "manifest not text": file(artifact.MANIFEST, lambda content: b"\xff\xfe\x00"),
    "manifest a list": file(artifact.MANIFEST, lambda content: b"[1]"),
    "other format": manifest(format=4),
    "format missing": manifest(format=None),
    "hash missing": manifest(sha256=None),
    "normalisation missing": manifest(normalisation=None),
    "normalisation no table": manifest(normalisation=[1]),
    "model missing": manifest(model=None),
    "model unknown": manifest(model="gf-cg"),
    "model a list": manifest(model=["gf-cf"]),
    "config missing": manifest(config=None),
    "config a list": manifest(config=[1]),
    "config with unknown field": manifest(config={"rank": 3, "rnak": 4}),
    "config of another type": manifest(config={"rank": "many"}),
    "config in disguise": manifest(config={"config": {"rank": 3}}),
    "rank above the vectors": manifest(config={"rank": 4}),
    "normalisation of another model": manifest(
        normalisation={"user": 0.5, "left": 0.75, "right": 0.75}
    ),
    "an array that no model has": arrays(lambda tensors: tensors.update(more=np.zeros(3))),
    "an array that this model does not derive": arrays(
        lambda tensors: tensors.update({"derived.more": np.zeros(3)})
    ),
    "arrays that are none": nonsense,
    "degrees missing": without("item_degrees"),
    "ids missing": without("item_ids"),
    "ids of other length": tensor("item_ids", lambda ids: ids[:-1]),
    "matrix missing": without("item_item.data"),
    "degrees of other length": tensor("item_degrees", lambda degrees: degrees[:-1]),
    "degrees no numbers of users": tensor("item_degrees", lambda degrees: degrees * 0.5),
    "weighted with degrees that are counts": manifest(weighted=True),
    "degrees a matrix": tensor("item_degrees", lambda degrees: degrees[:, None]),
    "basis of other length": tensor("basis", lambda basis: basis[:-1]),
    "basis a vector": tensor("basis", lambda basis: basis[:, 0]),
    "basis not a number": tensor("basis", lambda basis: basis * np.float32(np.nan)),
    "entry not a number": tensor("item_item.data", lambda data: data * np.float32(np.inf)),
    "item outside": tensor("item_item.indices", lambda indices: swap_end(indices, 10**6)),
    "negative item": tensor("item_item.indices", lambda indices: swap_end(indices, -1)),
    "rows that run backwards": tensor(
        "item_item.indptr", lambda p: p[[0, 2, 1, *range(3, len(p))]]
    ),
    "rows beyond the end": tensor("item_item.indptr", lambda p: swap_end(p, 10**6)),
    "fewer entries than items": tensor("item_item.data", lambda data: data[:-1]),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_artifacts_are_refused(saved: Path, damage: Damage) -> None:
    Recommender.load(saved)
    damage(saved)
    with pytest.raises(ArtifactError) as refused:
        Recommender.load(saved)
    assert str(saved) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "damage",
    [
        tensor("item_item.eigenvalues", lambda values: values[:-1]),
        tensor("item_item.eigenvalues", lambda values: values * np.nan),
        tensor("item_item.basis", lambda basis: basis[:-1]),
        tensor("item_item.basis", lambda basis: basis[0]),
        without("item_item.eigenvalues"),
    ],
)
def test_damaged_low_rank_artifacts_are_refused(
    holes: Interactions, tmp_path: Path, damage: Damage
) -> None:
    central = centralized(holes, rank=3)
    assert central.basis is not None
    operator = LowRankOperator(central.basis, np.ones(3))
    components = Components(central.item_degrees, operator, central.basis)
    folder = GFCF(rank=3).use(components).save(tmp_path / "saved")
    assert Recommender.load(folder).components.basis is not None
    damage(folder)
    with pytest.raises(ArtifactError):
        Recommender.load(folder)


def test_the_folder_holds_two_files_and_nothing_is_left_beside_it(saved: Path) -> None:
    assert {path.name for path in saved.iterdir()} == {artifact.ARRAYS, artifact.MANIFEST}
    assert [path.name for path in saved.parent.iterdir()] == ["saved"]


def test_an_earlier_artifact_is_replaced(saved: Path, holes: Interactions) -> None:
    GFCF(rank=2).fit(holes).save(saved)
    assert Recommender.load(saved).config.model_dump()["rank"] == 2
    assert [path.name for path in saved.parent.iterdir()] == ["saved"]
    empty = saved.with_name("empty")
    empty.mkdir()
    GFCF(rank=2).fit(holes).save(empty)
    assert Recommender.load(empty).config.model_dump()["rank"] == 2


@pytest.mark.parametrize(
    "names", [["thesis.tex"], ["manifest.json"], ["manifest.json", "index.html"], ["src/main.c"]]
)
def test_a_folder_of_something_else_is_left_alone(
    holes: Interactions, tmp_path: Path, names: list[str]
) -> None:
    """Test a folder of another program: many keep a manifest.json."""
    folder = tmp_path / "work"
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("precious")
    with pytest.raises(UsageError, match="not a saved model: nothing was written"):
        GFCF(rank=2).fit(holes).save(folder)
    assert all((folder / name).read_text() == "precious" for name in names)
    assert [path.name for path in tmp_path.iterdir()] == ["work"]


def test_notes_in_an_artifact_s_folder_are_left_alone(saved: Path, holes: Interactions) -> None:
    (saved / "notes.txt").write_text("precious")
    with pytest.raises(UsageError, match="not a saved model"):
        GFCF(rank=2).fit(holes).save(saved)
    assert (saved / "notes.txt").read_text() == "precious"


def test_where_nothing_can_be_written(holes: Interactions, tmp_path: Path) -> None:
    model = GFCF(rank=2).fit(holes)
    (tmp_path / "file").write_text("precious")
    for place in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / "file" / "a" / "b"):
        with pytest.raises(UsageError):
            model.save(place)
    assert (tmp_path / "file").read_text() == "precious"


def test_a_failure_half_way_leaves_the_old_one(
    saved: Path, holes: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (saved / artifact.ARRAYS).read_bytes()
    model = GFCF(rank=2).fit(holes)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("privirec.models.artifact.save_file", full)
    with pytest.raises(UsageError, match="No space left"):
        model.save(saved)
    monkeypatch.undo()

    real = artifact.os.rename
    moved: list[object] = []

    def second_fails(source: object, target: object) -> None:
        moved.append(source)
        if len(moved) == 2:
            raise OSError(28, "No space left on device")
        real(source, target)  # type: ignore[arg-type]

    monkeypatch.setattr(artifact.os, "rename", second_fails)
    with pytest.raises(UsageError, match="No space left"):
        model.save(saved)
    assert (saved / artifact.ARRAYS).read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == ["saved"]


def test_a_manifest_cannot_speak_for_the_arrays(holes: Interactions, tmp_path: Path) -> None:
    extra = {"sha256": "0", "format": 9, "model": "x", "config": {}, "note": "kept"}
    extra["normalisation"] = {"user": 3.0}
    folder = GFCF(rank=2).fit(holes).save(tmp_path / "saved", extra)
    assert Recommender.load(folder).config == GFCF(rank=2).config
    assert json.loads((folder / artifact.MANIFEST).read_text())["note"] == "kept"


def test_histories_are_never_saved(holes: Interactions, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="only released filters can be saved"):
        artifact.write(tmp_path / "saved", centralized(holes), holes.item_ids, {})
    assert not list(tmp_path.iterdir())
