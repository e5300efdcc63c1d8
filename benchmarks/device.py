"""CPU milliseconds per user of `recommend` on the device, from memory-mapped artifacts.

    python benchmarks/device.py ARTIFACT... [--dataset gowalla] [--users 200] [--json FILE]

Artifacts as `privirec run --save` writes them, for example:

    privirec run --dataset gowalla --method privirec-k --rank 256 --save k256
    privirec run --dataset gowalla --method privirec --save exact

Each artifact is installed (copied and verified) and measured in a process of its own with one
thread: reading the history from the store, scoring, leaving out what was seen, the best 10. Cold
start (imports, mapping the arrays, preparing the scorer, the first user) is given apart.
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
from pathlib import Path
from typing import Any


def measure(models: str, store_file: str) -> dict[str, Any]:
    """One installed artifact in this process."""
    started, cpu = time.perf_counter(), time.process_time()
    import numpy as np

    from privirec.device import Device, Installed, Store

    imported = time.process_time()
    with Store(store_file) as store:
        device = Device(store, Installed(models).load())
        loaded = time.process_time()
        users = store.users()
        device.recommend(users[0], explain=True)
        first, first_wall = time.process_time(), time.perf_counter()

        def milliseconds(**options: Any) -> list[float]:
            spent = []
            for user in users:
                before = time.process_time()
                device.recommend(user, 10, **options)
                spent.append(1000 * (time.process_time() - before))
            return spent

        spent = milliseconds()
        explained = milliseconds(explain=True)
    return {
        "users": len(users),
        "items": len(device.catalogue),
        "ms_per_user": float(np.median(spent)),
        "ms_per_user_p95": float(np.percentile(spent, 95)),
        "ms_per_user_explained": float(np.median(explained)),
        "import_cpu_seconds": imported - cpu,
        "load_cpu_seconds": loaded - imported,
        "first_user_cpu_seconds": first - loaded,
        "cold_start_seconds": first_wall - started,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("artifacts", nargs="*", type=Path)
    parser.add_argument("--dataset", default="gowalla")
    parser.add_argument("--users", type=int, default=200)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(measure(*arguments.child)))
        return
    if not arguments.artifacts:
        parser.error("name at least one artifact")

    import numpy as np

    from privirec.data import Interactions, load_dataset
    from privirec.device import Installed, Store

    train = load_dataset(arguments.dataset).train
    rng = np.random.default_rng(0)
    chosen = np.sort(rng.choice(np.flatnonzero(train.user_degrees), arguments.users, replace=False))
    histories = Interactions.from_matrix(
        train.matrix[chosen], train.user_ids[chosen], train.item_ids
    )
    one_thread = {"OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        with Store(Path(folder) / "silo.db", create=True) as store:
            store.add_interactions(histories)
        for artifact in arguments.artifacts:
            installed = Installed(Path(folder) / artifact.name)
            before = time.perf_counter()
            installed.install(artifact)
            installing = time.perf_counter() - before
            command = [sys.executable, __file__, "--child", installed.folder, store.path]
            for _ in range(2):  # the first may compile; what a user has after that is measured
                done = subprocess.run(
                    [*map(str, command)],
                    env={**os.environ, **one_thread},
                    stdout=subprocess.PIPE,
                    check=True,
                )
            rows.append(
                {
                    "artifact": artifact.name,
                    "dataset": arguments.dataset,
                    **json.loads(done.stdout),
                    "install_seconds": installing,
                }
            )
    for row in rows:
        print(f"{row['artifact']} ({row['dataset']}, {row['users']} users, {row['items']} items)")
        for key, value in list(row.items())[4:]:
            print(f"  {key:26} {value:10.2f}")
    if arguments.json:
        arguments.json.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
