"""Tests of artifacts: write-read round trips, signatures and refusals."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from privirec.data import Interactions
from privirec.errors import ArtifactError, UsageError
from privirec.filters.components import Components
from privirec.filters.operators import LowRankOperator, SparseOperator
from privirec.models import GFCF, Recommender, artifact

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))


def low_rank(train: Interactions, rank: int = 8) -> Recommender:
    components = GFCF(rank=rank).fit(train).components
    assert components.basis is not None
    operator = LowRankOperator(components.basis, np.linspace(1, 0.1, rank))
    return GFCF(rank=rank).use(
        Components(components.item_degrees, operator, components.basis), train.item_ids
    )


def refused(folder: Path, match: str | None = None, **options: Any) -> None:
    with pytest.raises(ArtifactError, match=match) as caught:
        Recommender.load(folder, **options)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def reseal(folder: Path, **changes: Any) -> None:
    """Write a manifest that matches the arrays, as a forger would."""
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["sha256"] = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    (folder / "manifest.json").write_bytes(artifact.canonical(manifest | changes))


# --- round trips --------------------------------------------------------------------------------


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("form", ["sparse", "low rank"])
def test_the_same_scores(
    train: Interactions, tmp_path: Path, form: str, mmap: bool, verify: bool
) -> None:
    model = GFCF(rank=8).fit(train) if form == "sparse" else low_rank(train)
    folder = model.save(tmp_path / "m", {"note": "ü", 3: 1, 20: 2})  # type: ignore[dict-item]
    loaded = Recommender.load(folder, mmap=mmap, verify=verify)
    np.testing.assert_array_equal(loaded.item_ids, train.item_ids)
    np.testing.assert_array_equal(model.score(train.matrix), loaded.score(train.matrix))
    found = artifact.read(folder)
    assert (found.manifest["format"], found.manifest["note"]) == (3, "ü")
    operator = found.components.item_item
    assert isinstance(operator, SparseOperator if form == "sparse" else LowRankOperator)
    assert not found.derived


def test_arrays_are_mapped_not_copied(saved: Path) -> None:
    components = artifact.read(saved).components
    assert isinstance(components.item_item, SparseOperator)
    matrix = components.item_item.matrix
    for array in (matrix.data, matrix.indices, matrix.indptr, components.item_degrees):
        assert not array.flags.owndata
        assert not array.flags.writeable


def test_our_parser_reads_what_safetensors_reads(saved: Path) -> None:
    where = saved / "model.safetensors"
    theirs = load_file(where)
    ours = artifact._parse(where, memoryview(where.read_bytes()))
    assert set(ours) == set(theirs)
    for name, array in theirs.items():
        assert ours[name].dtype == array.dtype
        np.testing.assert_array_equal(ours[name], array)


def test_a_caller_cannot_overrule_the_seal(model: Recommender, tmp_path: Path) -> None:
    folder = model.save(tmp_path / "m", {"sha256": "0", "format": 7})
    assert Recommender.load(folder).name == model.name


def test_saving_twice_gives_the_same_bytes(model: Recommender, tmp_path: Path) -> None:
    first, second = (model.save(tmp_path / name, {"b": 1, "a": 2}) for name in "xy")
    for file in ("model.safetensors", "manifest.json"):
        assert (first / file).read_bytes() == (second / file).read_bytes()


def test_a_manifest_that_is_no_json_is_refused(model: Recommender, tmp_path: Path) -> None:
    for bad in (float("nan"), object()):
        with pytest.raises(UsageError):
            model.save(tmp_path / "m", {"bad": bad})
    assert list(tmp_path.iterdir()) == []


def test_format_1_stays_readable(saved: Path, model: Recommender, named: Interactions) -> None:
    manifest = json.loads((saved / "manifest.json").read_text())
    del manifest["normalisation"]
    manifest |= {"format": 1, "alpha": 0.5}
    (saved / "manifest.json").write_text(json.dumps(manifest))
    loaded = Recommender.load(saved)
    np.testing.assert_array_equal(model.score(named.matrix), loaded.score(named.matrix))
    refused(saved, "not signed", trusted_key=KEY.public_key())
    with pytest.raises(ArtifactError, match="format 1 cannot be signed"):
        artifact.sign(saved, KEY)


@pytest.mark.parametrize("name", ["signed", "unsigned", "low-rank"])
def test_format_2_stays_readable(name: str) -> None:
    """Test artifacts written by the last version with format 2."""
    folder = Path(__file__).parents[1] / "vectors" / "artifact-2"
    expected = json.loads((folder / "expected.json").read_text())
    key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(expected["key"]))
    model = Recommender.load(folder / name, trusted_key=key if name == "signed" else None)
    assert artifact.read(folder / name).manifest["format"] == 2
    assert model.item_ids is not None
    assert model.item_ids[3] == "item 03"
    histories = expected["histories"]
    ends = np.cumsum([0, *map(len, histories)])
    ones = np.ones(ends[-1], np.float32)
    x = sp.csr_array((ones, np.concatenate(histories), ends), shape=(len(histories), 17))
    # Scores are inner products of at most 17 numbers in single precision, in the order of a BLAS:
    # each sum may be off by 17 roundings of 2^-24 of its largest term, and terms may cancel.
    scores = np.array(expected["scores"][name])
    tolerance = 2 * 17 * 2.0**-24 * np.abs(scores).max()
    np.testing.assert_allclose(model.score(x), scores, rtol=0, atol=tolerance)
    if name != "signed":
        refused(folder / name, "not signed", trusted_key=key)
        with pytest.raises(ArtifactError, match="format 2 cannot be signed"):
            artifact.sign(folder / name, KEY)


# --- signatures ---------------------------------------------------------------------------------


def test_signed(model: Recommender, tmp_path: Path) -> None:
    folder = model.save(tmp_path / "m", signing_key=KEY)
    Recommender.load(folder)
    Recommender.load(folder, trusted_key=KEY.public_key())
    refused(folder, "signed by key", trusted_key=OTHER.public_key())


def test_signed_later(saved: Path) -> None:
    refused(saved, "not signed", trusted_key=KEY.public_key())
    artifact.sign(saved, KEY)
    Recommender.load(saved, trusted_key=KEY.public_key())
    artifact.sign(saved, OTHER)
    Recommender.load(saved, trusted_key=OTHER.public_key())
    assert sorted(path.name for path in saved.iterdir()) == [
        "manifest.json",
        "manifest.sig",
        "model.safetensors",
    ]


def test_a_changed_manifest_breaks_the_signature(saved: Path) -> None:
    artifact.sign(saved, KEY)
    reseal(saved, note="better")
    Recommender.load(saved)
    refused(saved, "signature does not fit", trusted_key=KEY.public_key())


def test_other_arrays_under_a_signed_manifest(saved: Path, train: Interactions) -> None:
    artifact.sign(saved, KEY)
    other = GFCF(rank=8).fit(train).save(saved.parent / "other")
    shutil.copy(other / "model.safetensors", saved / "model.safetensors")
    refused(saved, "does not match its manifest", trusted_key=KEY.public_key())


def test_a_signature_for_another_purpose_is_none(saved: Path) -> None:
    content = (saved / "manifest.json").read_bytes()
    for message in (content, hashlib.sha256(content).digest()):
        record = {
            "key": KEY.public_key().public_bytes_raw().hex(),
            "signature": KEY.sign(message).hex(),
        }
        (saved / "manifest.sig").write_bytes(artifact.canonical(record))
        refused(saved, "signature does not fit", trusted_key=KEY.public_key())


@pytest.mark.parametrize(
    "content", [b"", b"x", b"[]", b"{}", b'{"key": 1, "signature": ""}', b"\xff", b"[" * 100_000]
)
def test_no_signature_at_all(saved: Path, content: bytes) -> None:
    (saved / "manifest.sig").write_bytes(content)
    refused(saved, "not a signature", trusted_key=KEY.public_key())


# --- refusals -----------------------------------------------------------------------------------


@given(data=st.data())
def test_any_damaged_byte_is_noticed(
    data: st.DataObject, model: Recommender, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = model.save(tmp_path_factory.mktemp("a") / "m", signing_key=KEY)
    file = folder / data.draw(st.sampled_from(["model.safetensors", "manifest.json"]))
    content = bytearray(file.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    file.write_bytes(content)
    refused(folder, trusted_key=KEY.public_key())


@given(data=st.data())
def test_truncation_is_noticed_even_without_the_hash(
    data: st.DataObject, model: Recommender, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = model.save(tmp_path_factory.mktemp("a") / "m")
    file = folder / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    refused(folder, verify=False)


def test_missing_files(saved: Path, tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "nowhere: no such folder$")
    (tmp_path / "flat.csv").write_text("user,item\n")
    refused(tmp_path / "flat.csv", "flat.csv: a file, not the folder of a model$")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "empty: no manifest.json there")
    (saved / "model.safetensors").unlink()
    refused(saved, r"no model.safetensors there")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "not readable as JSON"),
        (b"\xff\xfe", "not readable as JSON"),
        (b"[" * 100_000, "not readable as JSON"),
        (b"[]", "format None"),
        (b'{"format": 4}', "format 4 is not known"),
        (b'{"format": true}', "format True is not known"),
        (b'{"format": "2"}', "format '2' is not known"),
        (b'{"format": 2}', "not written in the canonical way"),
        (b'{"format": NaN}', "format nan"),
        (b'{"format": 3}', "not written in the canonical way"),
        (b'{\n  "format": 2\n}\n', "does not match its manifest"),
    ],
)
def test_bad_manifests(saved: Path, content: bytes, match: str) -> None:
    (saved / "manifest.json").write_bytes(content)
    refused(saved, match)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"model": "gpt"}, "unknown model 'gpt'"),
        ({"model": ["gf-cf"]}, "unknown model"),
        ({"config": None}, "not a config of gf-cf"),
        ({"config": {"config": {}}}, "not a config of gf-cf"),
        ({"config": {"rank": 10_000}}, "needs more than 16 vectors"),
        ({"config": {"magic": 1}}, "not a config of gf-cf"),
        ({"normalisation": "x"}, "not a model"),
        ({"normalisation": {"user": 1.0, "left": 0.5}}, "not a model"),
        ({"normalisation": {"user": 1.0, "left": "0.5", "right": 0.5}}, "impossible"),
        ({"normalisation": {"user": 1.0, "left": 0.5, "right": True}}, "impossible"),
        ({"normalisation": {"user": 1.4, "left": 0.3, "right": 0.3}}, "alpha = 0.5, not with"),
        ({"normalisation": {"user": 1.0, "left": 0.5, "right": 0.4}}, r"0\.5 and 0\.4"),
    ],
)
def test_manifests_that_lie(saved: Path, changes: dict[str, Any], match: str) -> None:
    reseal(saved, **changes)
    refused(saved, match)


def with_header(saved: Path, header: Any, body: bytes, length: int | None = None) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    size = struct.pack("<Q", len(text) if length is None else length)
    (saved / "model.safetensors").write_bytes(size + text + body)
    reseal(saved)


def entry(kind: Any = "U8", shape: Any = (4,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": kind, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("header", "match"),
    [
        (b"x", "header is not readable"),
        (b"[" * 4096, "header is not readable"),
        ([], "header is no table"),
        ({"a": 1}, "not described"),
        ({"a": {"dtype": "U8"}}, "not described"),
        ({"a": entry(kind="BF16")}, "unknown type"),
        ({"a": entry(kind=["U8"])}, "unknown type"),
        ({"a": entry(shape=[-4])}, "impossible"),
        ({"a": entry(shape=[True, 4])}, "impossible"),
        ({"a": entry(shape=[4.0])}, "impossible"),
        ({"a": entry(shape=4)}, "impossible"),
        ({"a": entry(shape=[1, 2, 2])}, "impossible"),
        ({"a": entry(shape=[2**63, 2])}, "impossible"),
        ({"a": entry(offsets=[4, 0])}, "impossible"),
        ({"a": entry(offsets=[0])}, "impossible"),
        ({"a": entry(offsets=[-1, 3])}, "impossible"),
        ({"a": entry(shape=[2**40, 2**40])}, "wrong place"),
        ({"a": entry(shape=[3])}, "wrong place"),
        ({"a": entry(offsets=[1, 5])}, "wrong place"),
        ({"a": entry(shape=[8], offsets=[0, 8])}, "cut off"),
        ({"a": entry(shape=[2], offsets=[0, 2])}, "more bytes"),
        ({"a": entry(), "b": entry()}, "wrong place"),
        (
            {"a": entry(shape=[2], offsets=[0, 2]), "b": entry(shape=[2], offsets=[1, 3])},
            "wrong place",
        ),
        (b'{"a": {}, "a": {}}', "header is not readable"),
        ({}, "more bytes"),
        ({"a": entry()}, "holds 'a', which no model has"),
        ({"derived.a": entry()}, "incomplete"),
    ],
)
def test_forged_headers(saved: Path, header: Any, match: str) -> None:
    with_header(saved, header, b"\0" * 4)
    refused(saved, match)
    refused(saved, match, verify=False, mmap=False)


def test_headers_of_impossible_length(saved: Path) -> None:
    for length, match in ((2**63, "a header of"), (9_000, "cut off in its header")):
        with_header(saved, {}, b"", length)
        refused(saved, match)
    (saved / "model.safetensors").write_bytes(b"")
    refused(saved, "empty")


def test_misaligned_arrays(saved: Path) -> None:
    header = {
        "a": entry(shape=[1], offsets=[0, 1]),
        "b": entry("F32", [1], [1, 5]),
    }
    with_header(saved, header, b"\0" * 5)
    refused(saved, "not aligned")


def rewritten(saved: Path, **changes: np.ndarray | None) -> None:
    tensors = load_file(saved / "model.safetensors")
    for name, array in changes.items():
        key = name.replace("__", ".")
        if array is None:
            del tensors[key]
        else:
            tensors[key] = np.ascontiguousarray(array)
    save_file(tensors, saved / "model.safetensors")
    reseal(saved)


def test_arrays_that_lie(saved: Path) -> None:
    good = load_file(saved / "model.safetensors")
    original = (saved / "model.safetensors").read_bytes()
    indices, indptr = good["item_item.indices"].copy(), good["item_item.indptr"].copy()
    data, basis = good["item_item.data"].copy(), good["basis"].copy()
    out_of_range, negative = indices.copy(), indices.copy()
    out_of_range[-1] = len(indptr) - 1
    negative[0] = -1
    backwards = indptr.copy()
    backwards[1], backwards[2] = backwards[2] + 1, backwards[1]
    infinite, blank = data.copy(), basis.copy()
    infinite[3], blank[0, 0] = np.inf, np.nan
    ends = good["item_ids.ends"].copy()
    ends[0] = -1
    text = good["item_ids.utf8"].copy()
    broken = text.copy()
    broken[0] = 0xFF
    repeated = text.copy()
    repeated[9:18] = repeated[0:9]
    cases: list[tuple[dict[str, np.ndarray | None], str]] = [
        ({"item_item__indices": out_of_range}, "outside the catalogue"),
        ({"item_item__indices": negative}, "outside the catalogue"),
        ({"item_item__indices": indices.astype(np.int64)}, "wrong type or dimensions"),
        ({"item_item__indices": indices[:-1]}, "different sizes"),
        ({"item_item__indptr": backwards}, "out of order"),
        ({"item_item__indptr": indptr[:-1]}, "different sizes"),
        ({"item_item__indptr": indptr + 1}, "out of order"),
        ({"item_item__data": infinite}, "not finite"),
        ({"item_item__data": None}, "incomplete"),
        ({"basis": blank}, "not finite"),
        ({"basis": basis[:-1]}, "different sizes"),
        ({"basis": basis.astype(np.float64)}, "wrong type or dimensions"),
        ({"item_degrees": good["item_degrees"][:-1]}, "different sizes"),
        ({"item_degrees": -good["item_degrees"] - 1}, "impossible degrees"),
        ({"item_degrees": None}, "incomplete"),
        ({"item_ids__ends": ends}, "out of order"),
        ({"item_ids__ends": good["item_ids.ends"][:-1]}, "out of order"),
        ({"item_ids__utf8": broken}, "not a model"),
        ({"item_ids__utf8": repeated}, "occurs twice"),
        ({"item_ids__utf8": None}, "incomplete"),
        ({"item_ids": np.arange(3)}, "different sizes"),
    ]
    for changes, match in cases:
        (saved / "model.safetensors").write_bytes(original)
        rewritten(saved, **changes)
        refused(saved, match)


@given(st.binary(max_size=200))
def test_random_bytes_never_crash(saved: Path, content: bytes) -> None:
    (saved / "model.safetensors").write_bytes(content)
    reseal(saved)
    refused(saved)
