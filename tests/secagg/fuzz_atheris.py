"""Fuzz the codec and both state machines with atheris, guided by coverage.

    python tests/secagg/fuzz_atheris.py -max_total_time=600

It needs `pip install atheris`, and exits with 2 and a message without it. It exits with 0 if
nothing but ProtocolErrors was raised.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

try:
    import atheris
except ImportError:
    print("atheris is not installed: pip install atheris", file=sys.stderr)
    sys.exit(2)

sys.path.insert(0, str(Path(__file__).parent.parent))

# The ring's kernels are compiled from their bytecode and must not be instrumented.
with atheris.instrument_imports(include=["privirec.secagg"], exclude=["privirec.secagg.ring"]):
    from secagg import fuzzing


def one_input(data: bytes) -> None:
    """Decode an input: the first byte selects the receiver, the second its state; the rest is the
    message."""
    if len(data) < 2:
        return
    target, stage, message = data[0] % 3, data[1], data[2:]
    if target == 0:
        fuzzing.decode_anything(message)
    elif target == 1:
        fuzzing.tell_client(stage % len(fuzzing.STORED), message)
    else:
        fuzzing.tell_server(stage % 4, message, stage // 4 % 5)


def write_corpus(folder: Path) -> None:
    """Write good messages in the states that expect them, as a starting corpus."""
    for stage in range(len(fuzzing.STORED)):
        for number, message in enumerate(fuzzing.MESSAGES):
            (folder / f"client-{stage}-{number}").write_bytes(bytes([1, stage]) + message)
    for stage in range(4):
        for sender, message in fuzzing.server_at(stage)[1]:
            state = stage + 4 * sender
            (folder / f"server-{stage}-{sender}").write_bytes(bytes([2, state]) + message)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_corpus(Path(folder))
        atheris.Setup([*sys.argv, folder], one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
