"""A saved model: a folder with `model.safetensors` and `manifest.json`.

Arrays only, no code, no histories. The folder appears whole or not at all, and the manifest holds
the hash of the arrays, so that a damaged one is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from privirec.errors import ArtifactError, UsageError
from privirec.filters.components import Components
from privirec.filters.operators import ItemOperator, LowRankOperator, SparseOperator
from privirec.version import __version__

FORMAT = 1
ARRAYS = "model.safetensors"
MANIFEST = "manifest.json"


def write(
    folder: Path, components: Components, item_ids: NDArray, manifest: dict[str, Any]
) -> Path:
    """Write the folder, replacing an earlier artifact there but nothing else."""
    tensors = _tensors(components, item_ids)
    try:
        if folder.exists() and not _is_replaceable(folder):
            raise UsageError(f"{folder} exists and is not a saved model: nothing was written")
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            save_file(tensors, fresh / ARRAYS)
            own = {
                "format": FORMAT,
                "privirec": __version__,
                "alpha": components.alpha,
                "sha256": _hash(fresh / ARRAYS),
            }
            record = json.dumps({**own, **manifest, **own}, indent=2)
            (fresh / MANIFEST).write_text(record + "\n", encoding="utf-8")
            fresh.chmod(0o755)
            _put(fresh, folder)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{folder} cannot be written: {error}") from None
    return folder


def _is_replaceable(folder: Path) -> bool:
    """Nothing in it, or an artifact and nothing else: no file of anybody's is ever lost."""
    return folder.is_dir() and {path.name for path in folder.iterdir()} in (
        set(),
        {ARRAYS, MANIFEST},
    )


def _put(fresh: Path, folder: Path) -> None:
    """Move a folder to its place; what was there stays if that fails."""
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


def read(folder: Path) -> tuple[Components, NDArray, dict[str, Any]]:
    """Components, item ids and manifest of a saved model."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ArtifactError(f"{folder}: no {MANIFEST} there") from None
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{folder}/{MANIFEST}: not readable as JSON ({error})") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ArtifactError(f"{folder}: not an artifact of format {FORMAT}")
    try:
        if _hash(folder / ARRAYS) != manifest.get("sha256"):
            raise ArtifactError(f"{folder}/{ARRAYS}: does not match its manifest")
        tensors = load_file(folder / ARRAYS)
    except (OSError, SafetensorError) as error:
        raise ArtifactError(f"{folder}/{ARRAYS}: {error}") from None
    try:
        components, ids = _components(tensors, float(manifest["alpha"])), _ids(tensors)
        if ids.shape != components.item_degrees.shape:
            raise ValueError("ids and items differ in number")
        return components, ids, manifest
    except (KeyError, ValueError, TypeError) as error:
        raise ArtifactError(f"{folder}: incomplete artifact ({error})") from None


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
    else:
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


def _components(tensors: dict[str, NDArray], alpha: float) -> Components:
    degrees = tensors["item_degrees"]
    if degrees.ndim != 1 or degrees.dtype != np.int64:
        raise ValueError("item degrees are not whole numbers")
    basis = tensors.get("basis")
    operator: ItemOperator
    if "item_item.basis" in tensors:
        operator = LowRankOperator(tensors["item_item.basis"], tensors["item_item.eigenvalues"])
        basis = operator.basis if basis is None else basis
        _check_matrix(operator.basis, (len(degrees), len(operator.eigenvalues)))
        _check_matrix(operator.eigenvalues, operator.eigenvalues.shape[:1])
    else:
        parts = tuple(tensors[f"item_item.{part}"] for part in ("data", "indices", "indptr"))
        matrix = sp.csr_array(parts, shape=(len(degrees), len(degrees)))
        matrix.check_format(full_check=True)
        _check_matrix(matrix.data, (matrix.nnz,))
        operator = SparseOperator(matrix)
    if basis is not None:
        _check_matrix(basis, (len(degrees), *basis.shape[-1:]))
    return Components(degrees, operator, basis, alpha)


def _check_matrix(values: NDArray, shape: tuple[int, ...]) -> None:
    if values.shape != shape:
        raise ValueError(f"an array of shape {values.shape} where {shape} belongs")
    if not np.isfinite(values).all():
        raise ValueError("an entry that is no number")


def _ids(tensors: dict[str, NDArray]) -> NDArray:
    if "item_ids" in tensors:
        return tensors["item_ids"]
    text, ends = tensors["item_ids.utf8"].tobytes(), tensors["item_ids.ends"].tolist()
    starts = [0, *ends[:-1]]
    return np.array([text[a:b].decode() for a, b in zip(starts, ends, strict=True)])


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
