"""Accuracy, CPU seconds and memory beside the libraries that people use, in one run.

    python benchmarks/peers.py [--datasets gowalla,globo] [--json docs/results/peers.jsonl]
        [--picture docs/results/peers.png] [--only implicit,privirec]

Each library gets an environment of its own, made with venv on the first run. Settings of all models
are chosen on the same held-out fifth of train, by NDCG@20 of 3,000 users; the test split is used
once. Rows that are in the file already are not measured again. Every measurement is a process with
one thread. CPU seconds are those of fitting and of the 20 best unseen items for every user; our
compiled loops are compiled before the clock runs.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

K = 20
USERS = 3000
ONE_THREAD = dict.fromkeys(
    ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)
Settings = dict[str, Any]
CANDIDATES: dict[tuple[str, str], list[Settings]] = {
    ("implicit", "ALS"): [{"factors": each} for each in (128, 256)],
    ("implicit", "BM25"): [{"K": each} for each in (50, 200)],
    ("implicit", "Cosine"): [{"K": each} for each in (50, 200)],
    ("rectools", "PureSVD"): [{"factors": each} for each in (128, 256)],
    ("lenskit", "ItemKNN"): [{"max_nbrs": each} for each in (20, 50)],
    ("privirec", "item-knn"): [{"neighbours": each} for each in (20, 200)],
    ("privirec", "turbo-cf"): [{}, {"alpha": 0.6}, {"alpha": 0.5, "s": 1.0}],
    ("privirec", "gf-cf"): [{}],
    ("privirec", "bspm-em"): [{}],
    ("privirec", "cheby-cf"): [{}, {"flatness": 2.0, "exponent": 0.2}],
    ("privirec", "ease"): [{"regularisation": each} for each in (100, 300)],
    ("privirec", "ridge"): [
        {},
        {"item_exponent": 0.2},
        {"history_exponent": 0.0, "item_exponent": 0.0},
    ],
}
MOST_INVERTED = 16_384
"""Largest catalogue for EASE, which inverts a matrix of items x items."""


# --- in the environment of a library: nothing of ours is imported ---------------------------------


def _implicit(kind: str, settings: Settings, train: sp.csr_matrix, users: np.ndarray) -> Any:
    from implicit.als import AlternatingLeastSquares
    from implicit.nearest_neighbours import BM25Recommender, CosineRecommender

    kinds = {"ALS": AlternatingLeastSquares, "BM25": BM25Recommender, "Cosine": CosineRecommender}
    more = {"random_state": 0} if kind == "ALS" else {}
    model = kinds[kind](**settings, **more, num_threads=1)
    model.fit(train, show_progress=False)
    yield
    yield model.recommend(users, train[users], N=K)[0]


def _rectools(kind: str, settings: Settings, train: sp.csr_matrix, users: np.ndarray) -> Any:
    import pandas as pd
    from rectools.dataset import Dataset
    from rectools.models import PureSVDModel

    entries = train.tocoo()
    frame = pd.DataFrame({"user_id": entries.row, "item_id": entries.col})
    data = Dataset.construct(frame.assign(weight=1.0, datetime=pd.Timestamp("2020-01-01")))
    model = PureSVDModel(**settings).fit(data)
    yield
    found = model.recommend(users=users, dataset=data, k=K, filter_viewed=True)
    yield _listed(found["user_id"], found["rank"] - 1, found["item_id"], users)


def _lenskit(kind: str, settings: Settings, train: sp.csr_matrix, users: np.ndarray) -> Any:
    import pandas as pd
    from lenskit.batch import recommend
    from lenskit.data import from_interactions_df
    from lenskit.knn import ItemKNNScorer
    from lenskit.pipeline import topn_pipeline

    entries = train.tocoo()
    frame = pd.DataFrame({"user_id": entries.row, "item_id": entries.col})
    pipeline = topn_pipeline(ItemKNNScorer(**settings, feedback="implicit"), n=K)
    pipeline.train(from_interactions_df(frame))
    yield
    found = recommend(pipeline, users.tolist(), K, n_jobs=1)
    lists = np.full((len(users), K), -1, np.int64)
    place = {user: row for row, user in enumerate(users.tolist())}
    for key, items in found.items():
        ids = np.asarray(items.ids(), np.int64)[:K]
        lists[place[int(key.user_id)], : len(ids)] = ids
    yield lists


def _privirec(kind: str, settings: Settings, train: sp.csr_matrix, users: np.ndarray) -> Any:
    from privirec.models import MODELS

    model = MODELS[kind](**settings).fit(sp.csr_array(train))
    yield
    yield model.recommend(users, sp.csr_array(train)[users], N=K)[0]


def _listed(rows: Any, places: Any, items: Any, users: np.ndarray) -> np.ndarray:
    lists = np.full((len(users), K), -1, np.int64)
    lists[np.searchsorted(users, np.asarray(rows)), np.asarray(places)] = np.asarray(items)
    return lists


def child(library: str, kind: str, settings: str, folder: str) -> None:
    """Fit, list the best items, and leave lists and figures in the folder."""
    train = sp.load_npz(Path(folder, "train.npz")).tocsr().astype(np.float32)
    users = np.load(Path(folder, "users.npy"))
    ways = {"implicit": _implicit, "rectools": _rectools, "lenskit": _lenskit}
    way = ways.get(library, _privirec)
    small = sp.random(300, 200, 0.1, "csr", np.float32, random_state=0)
    small.data[:] = 1
    if library == "privirec":  # compile before the clock runs
        list(way(kind, {}, small, np.arange(300)))
    started = time.process_time()
    steps = way(kind, json.loads(settings), train, users)
    next(steps)
    fitted = time.process_time()
    lists = next(steps)
    figures = {
        "fit_cpu_seconds": fitted - started,
        "top_cpu_seconds": time.process_time() - fitted,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    np.save(Path(folder, "lists.npy"), lists)
    Path(folder, "figures.json").write_text(json.dumps(figures), encoding="utf-8")


# --- here -----------------------------------------------------------------------------------------


def python_of(library: str, environments: Path) -> str:
    """Return the interpreter of a library's environment, which is made if it is not there."""
    if library == "privirec":
        return sys.executable
    home = environments / library
    python = home / "bin" / "python"
    if not python.exists():
        print(f"installing {library} in {home}", flush=True)
        venv.create(home, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", library], check=True)
    return str(python)


def measure(
    python: str, library: str, kind: str, settings: Settings, data: Any, users: np.ndarray
) -> dict[str, Any]:
    """Run one model in a process of its own and grade its lists."""
    from privirec.evaluation import grade_rankings

    with tempfile.TemporaryDirectory() as folder:
        sp.save_npz(Path(folder, "train.npz"), sp.csr_matrix(data.train.matrix))
        np.save(Path(folder, "users.npy"), users)
        command = [python, __file__, "--child", library, kind, json.dumps(settings), folder]
        subprocess.run(command, check=True, env=os.environ | ONE_THREAD, capture_output=True)
        lists = np.load(Path(folder, "lists.npy")).astype(np.int64)
        figures = json.loads(Path(folder, "figures.json").read_text(encoding="utf-8"))
    ndcg = grade_rankings(np.ascontiguousarray(lists), data.test.matrix[users])[1]
    return {"ndcg@20": float(ndcg.mean()), **figures}


def rows(dataset: str, only: list[str], environments: Path, known: list[dict[str, Any]]) -> Any:
    """Yield one row per model that is not known: settings chosen on validation, used on test."""
    from privirec.data import Dataset, load_dataset
    from privirec.data.splits import validation_split

    data = load_dataset(dataset)
    held = Dataset("validation", *validation_split(data.train, share=0.2, seed=0))
    asked = np.flatnonzero(held.test.user_degrees)
    some = np.sort(np.random.default_rng(0).choice(asked, min(USERS, len(asked)), replace=False))
    everybody = np.flatnonzero(data.test.user_degrees)
    for (library, kind), candidates in CANDIDATES.items():
        names = {"dataset": dataset, "library": library, "model": kind}
        if any(names.items() <= row.items() for row in known) or not {library, kind} & set(only):
            continue
        if kind == "ease" and data.train.n_items > MOST_INVERTED:
            continue
        python, best = python_of(library, environments), candidates[0]
        if len(candidates) > 1:
            tried = [measure(python, library, kind, each, held, some) for each in candidates]
            best = candidates[int(np.argmax([each["ndcg@20"] for each in tried]))]
        found = measure(python, library, kind, best, data, everybody)
        yield {**names, "settings": best, **found}


def show(found: list[dict[str, Any]]) -> None:
    """Print a table, the most accurate model of each data set first."""
    print("| data | model | settings | NDCG@20 | fit CPU s | top 20 CPU s | MB |")
    print("|---|---|---|---|---|---|---|")
    for row in sorted(found, key=lambda row: (row["dataset"], -row["ndcg@20"])):
        settings = ", ".join(f"{key} {value}" for key, value in row["settings"].items())
        print(
            f"| {row['dataset']} | {row['library']} {row['model']} | {settings or 'default'} | "
            f"{row['ndcg@20']:.4f} | {row['fit_cpu_seconds']:.1f} | "
            f"{row['top_cpu_seconds']:.1f} | {row['peak_mb']:.0f} |"
        )


def draw(found: list[dict[str, Any]], path: Path) -> None:
    """Draw NDCG@20 against CPU seconds, one panel per data set."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(row["dataset"] for row in found))
    figure = Figure(figsize=(5.5 * len(names), 4.2), layout="constrained")
    for place, name in enumerate(names, 1):
        panel = figure.add_subplot(1, len(names), place)
        for row in found:
            if row["dataset"] == name:
                ours = row["library"] == "privirec"
                point = row["fit_cpu_seconds"] + row["top_cpu_seconds"], row["ndcg@20"]
                panel.plot(*point, "o", color="tab:blue" if ours else "tab:gray")
                text = row["model"] if ours else f"{row['library']} {row['model']}"
                panel.annotate(text, point, xytext=(5, 3), textcoords="offset points", fontsize=8)
        panel.set(xscale="log", title=name, xlabel="CPU seconds (fit and top 20)")
        panel.set_ylabel("NDCG@20")
        panel.margins(x=0.25, y=0.1)
        panel.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", default="gowalla,globo")
    libraries = ",".join(dict.fromkeys(library for library, _ in CANDIDATES))
    parser.add_argument("--only", default=libraries)
    parser.add_argument("--environments", type=Path, default=Path("build/peers"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(*args.child)
        return
    found = []
    if args.json and args.json.exists():
        found = [json.loads(line) for line in args.json.read_text("utf-8").splitlines()]
    for dataset in args.datasets.split(","):
        for row in rows(dataset, args.only.split(","), args.environments, found):
            print(f"{dataset}, {row['library']} {row['model']}: {row['ndcg@20']:.4f}", flush=True)
            found.append(row)
            if args.json:
                with args.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
    show(found)
    if args.picture:
        draw(found, args.picture)


if __name__ == "__main__":
    main()
