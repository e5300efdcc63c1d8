"""A saved model: a folder with `model.safetensors`, `manifest.json` and optionally `manifest.sig`.

The files hold arrays and no code. The arrays are not histories, but exact filters reveal histories
(`privirec audit`). The folder appears complete or not at all. The manifest holds the hash of the
arrays and the signature covers the manifest, so a damaged or forged artifact is refused. Arrays are
mapped from the file: a device reads only the pages that its own history touches.

A model of noisy sums also keeps these sums, in `released.safetensors`, for later runs. The manifest
holds the hash of that file too. Devices do not get it.

The file also holds the arrays that a model derived from the components, if it keeps any. The model
declares them (`Recommender.derives`); no other arrays may be in the file.

Format 3 has derived arrays and item-item matrices that need not be symmetric. Format 2 had neither,
and format 1 had no canonical manifest either; both stay readable. Item degrees are whole numbers,
or doubles if the manifest says `weighted`; a version without support for weights refuses these.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap as mapping
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import scipy.sparse as sp
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file

from privirec.data.catalogue import Catalogue
from privirec.durable import check_folder, file_sha256, sync, write_whole
from privirec.errors import ArtifactError, UsageError
from privirec.filters.components import Components
from privirec.filters.earlier import Earlier
from privirec.filters.normalize import Normalisation
from privirec.filters.operators import ItemOperator, LowRankOperator, NotKept, SparseOperator
from privirec.version import __version__

FORMAT = 3
READABLE = (1, 2, FORMAT)
ARRAYS = "model.safetensors"
MANIFEST = "manifest.json"
SIGNATURE = "manifest.sig"
RELEASED = "released.safetensors"
"""Noisy sums to which a later run can add. They are public, and no device needs them."""

# Prefix of arrays that a model derived; `_NAMES` lists all other names.
_DERIVED = "derived."
_NAMES = {"item_degrees", "basis", "item_ids", "item_ids.utf8", "item_ids.ends"} | {
    f"item_item.{part}" for part in ("indptr", "indices", "data", "basis", "eigenvalues")
}
_OF_FILE = (
    *("model", "config", "weighted", "format", "privirec", "normalisation", "alpha"),
    *("sha256", "released"),
)
"""Entries of a manifest that describe the file and not where its content comes from."""
_LARGEST_HEADER = 1 << 20
_LARGEST_MANIFEST = 64 << 20
_NUMBERS_AT_ONCE = 1 << 22
_TYPES = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I32": "<i4", "I8": "|i1", "U8": "|u1"}


@dataclass(frozen=True)
class Saved:
    """Content of an artifact."""

    components: Components
    item_ids: NDArray
    manifest: dict[str, Any]
    derived: dict[str, NDArray]
    """Derived arrays by the model's names, as views of the bytes of the file."""


def write(
    folder: Path,
    components: Components,
    item_ids: NDArray,
    manifest: dict[str, Any],
    signing_key: Ed25519PrivateKey | None = None,
    derived: Mapping[str, NDArray] | None = None,
) -> Path:
    """Write the folder; replace an earlier artifact there, but no other content."""
    tensors = _tensors(components, item_ids)
    for name, array in (derived or {}).items():
        tensors[_DERIVED + name] = np.ascontiguousarray(array)
    try:
        check_replaceable(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            save_file(tensors, fresh / ARRAYS)
            sync(fresh / ARRAYS)
            kept = _write_released(fresh / RELEASED, components.released)
            record = {
                **manifest,
                **({"weighted": True} if components.is_weighted else {}),
                "format": FORMAT,
                "privirec": __version__,
                "normalisation": asdict(components.normalisation),
                "sha256": file_sha256(fresh / ARRAYS),
                **kept,
            }
            write_whole(fresh / MANIFEST, canonical(record))
            if signing_key is not None:
                sign(fresh, signing_key)
            _open_up(fresh)
            _put(fresh, folder)
            sync(folder.parent)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{folder} cannot be written: {error}") from None
    return folder


def check_replaceable(folder: Path) -> None:
    """Raise UsageError unless the folder is missing, empty or an artifact and nothing else.

    No other file is ever overwritten.
    """
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else {""}
    known = {ARRAYS, MANIFEST} <= names <= {ARRAYS, MANIFEST, SIGNATURE, RELEASED}
    if folder.exists() and names and not known:
        raise UsageError(f"{folder} exists and is not a saved model: nothing was written")


def _write_released(where: Path, released: Earlier | None) -> dict[str, str]:
    """Write the released sums, if there are any, and return their entry in the manifest."""
    if released is None:
        return {}
    save_file(released.arrays(), where)
    sync(where)
    return {"released": file_sha256(where)}


def _open_up(folder: Path) -> None:
    """Set the permissions of ordinary new files; temporary folders and safetensors are private."""
    umask = os.umask(0)
    os.umask(umask)
    for path in folder.iterdir():
        path.chmod(0o666 & ~umask)
    folder.chmod(0o777 & ~umask)


def _put(fresh: Path, folder: Path) -> None:
    """Move a folder to its final path; if that fails, the earlier content is restored."""
    if not folder.exists():
        os.rename(fresh, folder)
        return
    old = fresh.with_name(fresh.name + "-old")
    os.rename(folder, old)
    try:
        os.rename(fresh, folder)
    except BaseException:
        os.rename(old, folder)
        raise
    shutil.rmtree(old)


def canonical(record: dict[str, Any]) -> bytes:
    """Return the canonical bytes of a manifest."""
    try:
        # Convert to JSON and back first: keys that are numbers sort differently once they are text.
        plain = json.loads(json.dumps(record, allow_nan=False))
        return (json.dumps(plain, indent=2, sort_keys=True) + "\n").encode()
    except (TypeError, ValueError) as error:
        raise UsageError(f"a manifest cannot hold this: {error}") from None


def sign(folder: Path, key: Ed25519PrivateKey) -> None:
    """Write `manifest.sig` next to the manifest of a saved model."""
    content, manifest = read_manifest(folder)
    if manifest["format"] != FORMAT:
        raise ArtifactError(f"{folder}: format {manifest['format']} cannot be signed; save it anew")
    record = {
        "key": key.public_key().public_bytes_raw().hex(),
        "signature": key.sign(_signed_message(content, FORMAT)).hex(),
    }
    write_whole(folder / SIGNATURE, canonical(record), mode=0o644)


def read(
    folder: Path,
    trusted_key: Ed25519PublicKey | None = None,
    *,
    mmap: bool = True,
    verify: bool = True,
) -> Saved:
    """Read a saved model.

    With a trusted key the artifact must carry that key's signature. `verify=False` skips the checks
    that take a pass over all arrays (their hash, indices in range, finite numbers). Use it only for
    a file that was verified before and that nobody else can write.
    """
    content, manifest = read_manifest(folder)
    if trusted_key is not None:
        _check_signature(folder, content, manifest["format"], trusted_key)
    where = folder / ARRAYS
    buffer = _bytes_of(where, mmap)
    if verify and hashlib.sha256(buffer).hexdigest() != manifest.get("sha256"):
        raise ArtifactError(f"{where}: does not match its manifest")
    tensors = _parse(where, buffer)
    try:
        derived = _take_derived(tensors) if manifest["format"] == FORMAT else {}
        degrees = _degrees(tensors, manifest.get("weighted", False))
        components = _components(tensors, degrees, _normalisation(manifest), bool(derived), verify)
        if verify:
            _check_finite(tensors | derived)
        item_ids = _ids(tensors)
        if len(item_ids) != components.n_items:
            raise ValueError("parts of different sizes")
        if verify and Catalogue(item_ids).repeats:
            raise ValueError("an item id occurs twice")
    except KeyError as error:
        raise ArtifactError(f"{folder}: incomplete artifact (no {error})") from None
    except (ValueError, TypeError) as error:
        raise ArtifactError(f"{folder}: not a model ({error})") from None
    origin = {name: said for name, said in manifest.items() if name not in _OF_FILE}
    return Saved(replace(components, origin=origin), item_ids, manifest, derived)


def read_released(folder: Path, manifest: Mapping[str, Any]) -> Earlier:
    """Read the noisy sums of a saved model whose manifest was read and checked before."""
    where = folder / RELEASED
    if "released" not in manifest:
        raise ArtifactError(f"{folder}: keeps no released sums that a later run could add to")
    buffer = _bytes_of(where, mmap=False)
    if hashlib.sha256(buffer).hexdigest() != manifest["released"]:
        raise ArtifactError(f"{where}: does not match its manifest")
    try:
        return Earlier.of_arrays(_parse(where, buffer))
    except UsageError as error:
        raise ArtifactError(f"{where}: {error}") from None


def read_manifest(folder: Path) -> tuple[bytes, dict[str, Any]]:
    """Return the bytes and the content of a manifest of any readable format."""
    where = folder / MANIFEST
    content = _read_small(where)
    try:
        manifest = json.loads(content)
    except (ValueError, RecursionError):
        raise ArtifactError(f"{where}: not readable as JSON") from None
    version = manifest.get("format") if isinstance(manifest, dict) else None
    if type(version) is not int or version not in READABLE:
        known = f"1 to {FORMAT}"
        raise ArtifactError(f"{folder}: format {_short(version)} is not known here ({known} are)")
    # Each content has exactly one text: no repeated keys, nothing that parsers read differently.
    if version != 1 and canonical(manifest) != content:
        raise ArtifactError(f"{where}: not written in the canonical way")
    return content, manifest


# --- signatures -----------------------------------------------------------------------------------


def _signed_message(manifest: bytes, version: int) -> bytes:
    """Return the bytes to sign; they name their purpose, so other signatures are not valid here."""
    return f"privirec/artifact/{version}\0".encode() + hashlib.sha256(manifest).digest()


def _check_signature(
    folder: Path, manifest: bytes, version: int, trusted: Ed25519PublicKey
) -> None:
    where = folder / SIGNATURE
    if not where.exists():
        raise ArtifactError(f"{folder}: not signed, and only signed artifacts are accepted")
    try:
        record = json.loads(_read_small(where))
        key, signature = bytes.fromhex(record["key"]), bytes.fromhex(record["signature"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ArtifactError(f"{where}: not a signature") from None
    expected = trusted.public_bytes_raw()
    if key != expected:
        raise ArtifactError(
            f"{folder}: signed by key {key.hex()[:16]}, not by the trusted {expected.hex()[:16]}"
        )
    try:
        trusted.verify(signature, _signed_message(manifest, version))
    except InvalidSignature:
        raise ArtifactError(f"{folder}: the signature does not fit the manifest") from None


# --- bytes ----------------------------------------------------------------------------------------


def _read_small(where: Path) -> bytes:
    try:
        with where.open("rb") as file:
            content = file.read(_LARGEST_MANIFEST + 1)
    except (FileNotFoundError, NotADirectoryError):
        check_folder(where.parent, "a model", ArtifactError)
        raise ArtifactError(f"{where.parent}: no {where.name} there") from None
    except OSError as error:
        raise ArtifactError(f"{where}: {error.strerror}") from None
    if len(content) > _LARGEST_MANIFEST:
        raise ArtifactError(f"{where}: too large")
    return content


def _bytes_of(where: Path, mmap: bool) -> memoryview:
    try:
        with where.open("rb") as file:
            if not mmap:
                return memoryview(file.read())
            if os.fstat(file.fileno()).st_size == 0:
                _refuse(where, "empty")
            return memoryview(mapping.mmap(file.fileno(), 0, access=mapping.ACCESS_READ))
    except FileNotFoundError:
        raise ArtifactError(f"{where.parent}: no {where.name} there") from None
    except OSError as error:
        raise ArtifactError(f"{where}: {error.strerror}") from None


def _parse(where: Path, buffer: memoryview) -> dict[str, NDArray]:
    """Return read-only arrays over the bytes of a safetensors file; its header is not trusted."""
    if len(buffer) < 8:
        _refuse(where, "cut off before its header")
    length = int.from_bytes(buffer[:8], "little")
    if length > _LARGEST_HEADER:
        _refuse(where, f"a header of {length} bytes")
    start = 8 + length
    if start > len(buffer):
        _refuse(where, "cut off in its header")
    try:
        header = json.loads(bytes(buffer[8:start]), object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError):
        _refuse(where, "its header is not readable")
    if not isinstance(header, dict):
        _refuse(where, "its header is no table")
    header.pop("__metadata__", None)
    parts = sorted((_part(where, name, entry) for name, entry in header.items()), key=_position)
    tensors: dict[str, NDArray] = {}
    expected = 0
    for name, kind, shape, begin, end in parts:
        # Without gaps and overlaps, every hashed byte has exactly one meaning.
        if begin != expected or end - begin != math.prod(shape) * kind.itemsize:
            _refuse(where, f"{_short(name)} lies in the wrong place")
        if start + end > len(buffer):
            _refuse(where, f"cut off in {_short(name)}")
        if (start + begin) % kind.itemsize:
            _refuse(where, f"{_short(name)} is not aligned")
        count = math.prod(shape)
        flat = np.frombuffer(buffer, kind, count, start + begin) if count else np.empty(0, kind)
        tensors[name] = flat.reshape(shape)
        expected = end
    if start + expected != len(buffer):
        _refuse(where, "more bytes than its header describes")
    return tensors


def _part(where: Path, name: str, entry: Any) -> tuple[str, np.dtype, list[int], int, int]:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        _refuse(where, f"{_short(name)} is not described")
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(kind, str) or kind not in _TYPES:
        _refuse(where, f"{_short(name)} has the unknown type {_short(kind)}")
    for numbers, most in ((shape, 2), (offsets, 2)):
        fine = isinstance(numbers, list) and len(numbers) <= most
        if not fine or not all(type(number) is int and 0 <= number < 2**62 for number in numbers):
            _refuse(where, f"{_short(name)} has an impossible shape or place")
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        _refuse(where, f"{_short(name)} has an impossible shape or place")
    return name, np.dtype(_TYPES[kind]), shape, offsets[0], offsets[1]


def _position(part: tuple[str, np.dtype, list[int], int, int]) -> tuple[int, int]:
    return part[3], part[4]


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a name occurs twice")
    return table


def _refuse(where: Path, why: str) -> NoReturn:
    raise ArtifactError(f"{where}: {why}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


# --- arrays and what they mean --------------------------------------------------------------------


def _tensors(components: Components, item_ids: NDArray) -> dict[str, NDArray]:
    tensors: dict[str, NDArray] = {"item_degrees": components.item_degrees}
    operator = components.item_item
    if isinstance(operator, SparseOperator):
        matrix = operator.matrix
        tensors["item_item.indptr"] = matrix.indptr.astype(np.int64)
        tensors["item_item.indices"] = matrix.indices.astype(np.int32)
        tensors["item_item.data"] = matrix.data
    elif isinstance(operator, LowRankOperator):
        tensors["item_item.basis"] = np.ascontiguousarray(operator.basis)
        tensors["item_item.eigenvalues"] = np.ascontiguousarray(operator.eigenvalues)
    elif not isinstance(operator, NotKept):
        raise UsageError("only released filters can be saved, not ones that hold histories")
    if components.basis is not None and not (
        isinstance(operator, LowRankOperator) and operator.basis is components.basis
    ):
        tensors["basis"] = np.ascontiguousarray(components.basis)
    if np.issubdtype(item_ids.dtype, np.integer):
        tensors["item_ids"] = item_ids.astype(np.int64)
    else:
        names = [str(name).encode() for name in item_ids]
        tensors["item_ids.utf8"] = np.frombuffer(b"".join(names), np.uint8)
        tensors["item_ids.ends"] = np.cumsum([len(name) for name in names], dtype=np.int64)
    return tensors


def _take_derived(tensors: dict[str, NDArray]) -> dict[str, NDArray]:
    """Remove the derived arrays from all and return them; raise ValueError for unknown names."""
    names = [name for name in tensors if name.startswith(_DERIVED)]
    derived = {name.removeprefix(_DERIVED): tensors.pop(name) for name in names}
    if unknown := tensors.keys() - _NAMES:
        raise ValueError(f"it holds {_short(min(unknown))}, which no model has")
    return derived


def _normalisation(manifest: dict[str, Any]) -> Normalisation:
    if manifest["format"] < FORMAT:
        found = Normalisation.symmetric(float(manifest["alpha"]))
    else:
        found = Normalisation(**manifest["normalisation"])
    exponents = (found.user, found.left, found.right)
    if not all(type(each) in (int, float) and math.isfinite(each) for each in exponents):
        raise ValueError("impossible normalisation")
    return found


def _degrees(tensors: dict[str, NDArray], weighted: object) -> NDArray:
    degrees = _typed(tensors, "item_degrees", "<f8" if weighted is True else "<i8", 1)
    if len(degrees) and not degrees.min() >= 0:  # also true for NaN
        raise ValueError("impossible degrees")
    return degrees


def _components(
    tensors: dict[str, NDArray],
    degrees: NDArray,
    normalisation: Normalisation,
    derived: bool,
    verify: bool,
) -> Components:
    basis = _typed(tensors, "basis", "<f4", 2) if "basis" in tensors else None
    operator: ItemOperator
    if "item_item.basis" in tensors:
        operator = LowRankOperator(
            _typed(tensors, "item_item.basis", "<f4", 2),
            _typed(tensors, "item_item.eigenvalues", "<f8", 1),
        )
        if operator.basis.shape[1] != len(operator.eigenvalues):
            raise ValueError("parts of different sizes")
        basis = operator.basis if basis is None else basis
    elif derived and "item_item.indptr" not in tensors:
        operator = NotKept(len(degrees))
    else:
        operator = SparseOperator(_sparse(tensors, len(degrees), verify))
    if operator.n_items != len(degrees) or (basis is not None and len(basis) != len(degrees)):
        raise ValueError("parts of different sizes")
    return Components(degrees, operator, basis, normalisation)


def _check_finite(tensors: dict[str, NDArray]) -> None:
    for name, array in tensors.items():
        flat = array.reshape(-1)
        for start in range(0, len(flat) if array.dtype.kind == "f" else 0, _NUMBERS_AT_ONCE):
            if not np.isfinite(flat[start : start + _NUMBERS_AT_ONCE]).all():
                raise ValueError(f"{name} holds numbers that are not finite")


def _sparse(tensors: dict[str, NDArray], n_items: int, verify: bool) -> sp.csr_array:
    indptr = _typed(tensors, "item_item.indptr", "<i8", 1)
    indices = _typed(tensors, "item_item.indices", "<i4", 1)
    data = _typed(tensors, "item_item.data", "<f4", 1)
    if len(indptr) != n_items + 1 or len(data) != len(indices):
        raise ValueError("parts of different sizes")
    if indptr[0] != 0 or indptr[-1] != len(data) or (np.diff(indptr) < 0).any():
        raise ValueError("rows of the item-item matrix out of order")
    if verify and len(indices) and (indices.min() < 0 or indices.max() >= n_items):
        raise ValueError("an entry of the item-item matrix outside the catalogue")
    matrix = sp.csr_array((n_items, n_items), dtype=np.float32)
    # Assign one by one: the constructor would copy arrays that are views of a larger buffer.
    matrix.data, matrix.indices, matrix.indptr = data, indices, indptr
    return matrix


def _ids(tensors: dict[str, NDArray]) -> NDArray:
    if "item_ids" in tensors:
        return _typed(tensors, "item_ids", "<i8", 1)
    text = _typed(tensors, "item_ids.utf8", "|u1", 1).tobytes()
    ends = _typed(tensors, "item_ids.ends", "<i8", 1)
    if (np.diff(ends, prepend=0) < 0).any() or (int(ends[-1]) if len(ends) else 0) != len(text):
        raise ValueError("item ids out of order")
    stops = ends.tolist()
    starts = [0, *stops[:-1]]
    return np.array([text[a:b].decode() for a, b in zip(starts, stops, strict=True)], str)


def _typed(tensors: dict[str, NDArray], name: str, kind: str, dimensions: int) -> NDArray:
    array = tensors[name]
    if array.dtype != np.dtype(kind) or array.ndim != dimensions:
        raise ValueError(f"{name} has the wrong type or dimensions")
    return array
