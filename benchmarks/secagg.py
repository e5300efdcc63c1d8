"""Secure aggregation, one thread: masking and secret sharing beside bare ciphers and Flower.

    python benchmarks/secagg.py [--entries 1000000] [--masks 101] [--json FILE]

What is compared, in CPU seconds of one process, best of a few repetitions:

bare     update_into a reused buffer, AES-256-CTR, and a wrapping add: the least that masking costs
ours     what a client does: bounds check, all masks, packing, messages
flower   flwr's own pseudo_rand_gen, parameters_addition and parameters_mod, if flwr is installed

Throughput counts the key stream that the ring needs: masks * entries * bytes of the ring's word.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

# Before NumPy is imported: one thread, and no telemetry from the library beside us.
os.environ.update(
    OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", NUMBA_NUM_THREADS="1", FLWR_TELEMETRY_ENABLED="0"
)

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from privirec.secagg.prg import MaskGenerator
from privirec.secagg.protocol import DEFAULT_BLOCK_ENTRIES
from privirec.secagg.ring import VectorShape, rechunked
from privirec.secagg.shamir import combine, split

WIDTHS = (32, 16, 12)
BARE_BUFFERS = (1 << 16, 1 << 17, 1 << 18, 1 << 22)


def seconds(action: Callable[[], object], repetitions: int = 9) -> float:
    """CPU seconds of the fastest repetition."""
    times = []
    action()
    for _ in range(repetitions):
        start = time.process_time()
        action()
        times.append(time.process_time() - start)
    return min(times)


def bare(shape: VectorShape, seeds: list[bytes], cipher: str, buffer_bytes: int) -> None:
    total = np.zeros(shape.length, shape.ring.dtype)
    buffer = np.empty(min(buffer_bytes, total.nbytes), np.uint8)
    zeros = memoryview(bytes(len(buffer)))
    words = buffer.view(total.dtype)
    for seed in seeds:
        if cipher == "aes":
            stream = Cipher(algorithms.AES256(seed), modes.CTR(bytes(16))).encryptor()
        else:
            stream = Cipher(algorithms.ChaCha20(seed, bytes(16)), None).encryptor()
        for start in range(0, shape.length, len(words)):
            part = total[start : start + len(words)]
            stream.update_into(zeros[: part.nbytes], memoryview(buffer)[: part.nbytes])
            np.add(part, words[: len(part)], out=part)


def ours(shape: VectorShape, seeds: list[bytes], values: np.ndarray) -> None:
    generator = MaskGenerator()
    half = len(seeds) // 2

    def hide(offset: int, block: np.ndarray) -> None:
        generator.add(block, offset, seeds[:half])
        generator.subtract(block, offset, seeds[half:])

    offset = 0
    for block in rechunked([values], shape, DEFAULT_BLOCK_ENTRIES):
        hide(offset, block)
        shape.ring.pack(block)
        offset += len(block)


def flower_masks(flower: ModuleType, shape: VectorShape, seeds: list[bytes]) -> None:
    from flwr.common.secure_aggregation import ndarrays_arithmetic

    modulus = shape.ring.modulus
    vector = [np.zeros(shape.length, np.int64)]
    for seed in seeds:
        mask = flower.pseudo_rand_gen(seed, modulus, [(shape.length,)])
        vector = ndarrays_arithmetic.parameters_addition(vector, mask)
    ndarrays_arithmetic.parameters_mod(vector, modulus)


def masking(entries: int, masks: int, flower: ModuleType | None) -> Iterator[dict[str, Any]]:
    seeds = [os.urandom(32) for _ in range(masks)]
    for width in WIDTHS:
        shape = VectorShape(entries, width, bound=min(1000, (1 << width) - 1))
        values = np.random.default_rng(0).integers(0, shape.bound, entries)
        megabytes = masks * entries * shape.ring.word_bytes / 1e6
        row: dict[str, Any] = {
            "benchmark": "masking",
            "ring_bits": width,
            "entries": entries,
            "masks": masks,
            "bare_aes_seconds": min(
                seconds(lambda size=size, shape=shape: bare(shape, seeds, "aes", size))
                for size in BARE_BUFFERS
            ),
            "bare_chacha_seconds": seconds(
                lambda shape=shape: bare(shape, seeds, "chacha", 1 << 17)
            ),
            "ours_seconds": seconds(lambda shape=shape, values=values: ours(shape, seeds, values)),
        }
        row["ours_mb_per_second"] = megabytes / row["ours_seconds"]
        row["share_of_bare"] = row["bare_aes_seconds"] / row["ours_seconds"]
        if flower is not None:
            row["flower_seconds"] = seconds(
                lambda shape=shape: flower_masks(flower, shape, seeds), 1
            )
            row["times_flower"] = row["flower_seconds"] / row["ours_seconds"]
        yield row


def sharing(holders: int, threshold: int, flower: ModuleType | None) -> dict[str, Any]:
    secret = os.urandom(32)
    dealt = split([secret], holders, threshold, os.urandom)
    chosen = list(enumerate(dealt, start=1))[-threshold:]

    def uncached() -> None:
        from privirec.secagg import shamir

        shamir._weights_at_zero.cache_clear()
        assert combine(chosen) == [secret]

    row: dict[str, Any] = {
        "benchmark": "sharing",
        "holders": holders,
        "threshold": threshold,
        "split_seconds": seconds(lambda: split([secret], holders, threshold, os.urandom), 20),
        "combine_seconds": seconds(uncached, 20),
    }
    if flower is not None:
        from flwr.common.secure_aggregation.crypto import shamir as flower_shamir

        shares = flower_shamir.create_shares(secret, threshold, holders)
        some = shares[-threshold:]
        assert flower_shamir.combine_shares(some) == secret
        row["flower_split_seconds"] = seconds(
            lambda: flower_shamir.create_shares(secret, threshold, holders), 1
        )
        row["flower_combine_seconds"] = seconds(lambda: flower_shamir.combine_shares(some), 1)
        row["times_flower_split"] = row["flower_split_seconds"] / row["split_seconds"]
        row["times_flower_combine"] = row["flower_combine_seconds"] / row["combine_seconds"]
    return row


def installed_flower() -> ModuleType | None:
    try:
        from flwr.common.secure_aggregation import secaggplus_utils
    except ImportError:
        return None
    module: ModuleType = secaggplus_utils
    return module


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--masks", type=int, default=101)
    parser.add_argument("--json", metavar="FILE", help="write one JSON object a line")
    options = parser.parse_args()
    flower = installed_flower()
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}")
    if flower is None:
        print("flwr is not installed: nothing is compared with Flower (pip install flwr)")
    rows = [*masking(options.entries, options.masks, flower)]
    for row in rows:
        print(
            f"{row['ring_bits']:2d}-bit ring, {row['masks']} masks of {row['entries']} entries: "
            f"ours {row['ours_seconds']:.3f} s ({row['ours_mb_per_second']:,.0f} MB/s), "
            f"bare AES {row['bare_aes_seconds']:.3f} s ({row['share_of_bare']:.0%} of bare), "
            f"bare ChaCha20 {row['bare_chacha_seconds']:.3f} s"
            + (
                f", Flower {row['flower_seconds']:.2f} s ({row['times_flower']:.1f} times)"
                if flower
                else ""
            )
        )
    rows.append(sharing(100, 51, flower))
    print(
        "Shamir, 32 bytes, 100 holders, threshold 51: split {split_seconds:.5f} s, combine "
        "{combine_seconds:.5f} s".format(**rows[-1])
        + (
            "; Flower {flower_split_seconds:.2f} s and {flower_combine_seconds:.2f} s "
            "({times_flower_split:.0f} and {times_flower_combine:.0f} times)".format(**rows[-1])
            if flower
            else ""
        )
    )
    if options.json:
        with open(options.json, "w") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
