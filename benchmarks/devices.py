"""Devices by the thousand over HTTPS: one person each, real TLS on loopback, real masks.

    python benchmarks/devices.py                              # protected, 2,000 devices
    python benchmarks/devices.py --program degrees --clients 10000 --step-seconds 600

Light clients share a few processes, each with a folder, a key, connections and state of its own. By
`--seed` some are killed before they have sent a vector, and never come back. The last `--programs`
of them are `privirec client up` itself, each with a store, in a process of its own. The server is
`privirec server up --carrier https`, in a process of its own. The run stops by itself, and after
`--most-seconds` in any case.

Printed: whether the run ended right (the opened sum is the exact one of the clients in it, or
differs from it by noise of the promised deviation), requests a second, CPU and memory of the
server, CPU and bytes a client, memory of the programs at their largest, and how long each of their
starts takes until the server has answered, before anything else runs.

What the clients of a process share, and devices would not: the plan of a run is parsed, and the
pledges in it are checked, once a process, and its text is kept once. `plan_check_seconds` says what
that takes on a device alone.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import itertools
import json
import os
import queue
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

from privirec.compiled import go_without

if __name__ == "__main__" and sys.argv[1:2] == ["hold"]:
    go_without()  # before anything else is imported

import numpy as np

from privirec.data.catalogue import Catalogue, read_catalogue, write_catalogue
from privirec.data.interactions import Interactions
from privirec.device.store import Store
from privirec.durable import private_folder
from privirec.federated import programs, wire
from privirec.federated.contributions import Histories, ItemDegrees
from privirec.federated.programs import Planned, Program, ProgramSettings, Steps
from privirec.filters.components import Components
from privirec.filters.operators import NotKept
from privirec.privacy.policy import Policy, allowing
from privirec.runtime.child_processes import Processes, Running, free_port, wait_for_port
from privirec.runtime.enrolment.certificates import make_certificates
from privirec.runtime.enrolment.folders import ClientFolder, OperatorFolder
from privirec.runtime.enrolment.roster import Approved, RosterFile, ServerNamed
from privirec.runtime.node import Node
from privirec.runtime.node.run_state import ClientRun
from privirec.runtime.pledges import Pledges
from privirec.runtime.run_plan import RunPlan
from privirec.runtime.spec import RunSpec
from privirec.secagg.keys import Identity

DROP_SHARE = 0.1
NODE_KEY = "ecdsa-sha2-nistp384 none"
"""These clients are never carried by Flower."""
KILLED_AT = (3, 4)
"""Which message of the run a client that is killed does not answer: share or input."""


STARTS = 7
"""Of a program, until its first answer; one more before them is not counted."""
AT_ONCE = 8
"""Devices of one process that are at work at a time: a thousand with a connection open, and one
that computes, would all wait too long for their servers."""


class DegreesSettings(ProgramSettings):
    """There is nothing to set."""

    method: Literal["degrees"] = "degrees"


class Degrees(Program[DegreesSettings]):
    """V and nothing else."""

    name: ClassVar[str] = "degrees"
    title: ClassVar[str] = "Degrees"
    gives_away: ClassVar[str] = "how many people touched each item"
    settings_type = DegreesSettings

    def outline(self, item_item_entries: int | None = None) -> list[Planned]:
        return [ItemDegrees.planned(self.n_items, self.n_users)]

    def _steps(self, outline: list[Any]) -> Steps:
        degrees = yield outline[0].ask()
        return Components(degrees, NotKept(self.n_items))


def identity(seed: int, client: int) -> Identity:
    return Identity(hashlib.sha256(f"device {seed} {client}".encode()).digest())


def killed(args: argparse.Namespace) -> dict[int, int]:
    """Which clients are killed, and at which message of the run."""
    rng = random.Random(args.seed)  # noqa: S311
    alike = args.clients - args.programs
    chosen = rng.sample(range(alike), round(args.kill_share * alike))
    return {client: rng.choice(KILLED_AT) for client in chosen}


# --- the devices ----------------------------------------------------------------------------------


class OnePerson:
    """A history that does not change."""

    def __init__(self, items: Any, client: int, catalogue: Catalogue) -> None:
        rows = np.zeros(len(items), np.int64)
        name = np.array([f"person-{client}"])
        self._found = Interactions.from_indices(rows, items, name, catalogue.item_ids)

    def begin(self, run: str, catalogue: Catalogue, since: Any = None) -> Interactions:
        return self._found

    def may_have_changed(self, since: Any) -> bool:
        return False

    def check(self, run: str) -> None: ...

    def sent(self, run: str) -> None: ...

    def preview(self, catalogue: Catalogue) -> tuple[Interactions, int]:
        return self._found, 0

    def finish(self, run: str) -> None: ...


class Killed(BaseException):
    """This device is gone."""


def share_plans() -> None:
    """Parse a plan, check its pledges and keep its text once a process."""
    texts: dict[str, str] = {}
    as_row, from_row = ClientRun.as_row, ClientRun.from_row.__func__

    def short(state: ClientRun) -> dict[str, Any]:
        row = as_row(state)
        digest = hashlib.sha256(row["plan_text"].encode()).hexdigest()
        texts[digest] = row["plan_text"]
        return row | {"plan_text": digest}

    def whole(cls: type[ClientRun], plain: dict[str, Any], secrets: dict[str, bytes]) -> ClientRun:
        return from_row(cls, plain | {"plan_text": texts[plain["plan_text"]]}, secrets)

    ClientRun.as_row, ClientRun.from_row = short, classmethod(whole)
    RunPlan.parse = functools.lru_cache(maxsize=2)(RunPlan.parse)
    for name in ("sums", "program", "steps", "shapes", "for_policy", "statement"):
        remembered(RunPlan, name)
    remembered(Pledges, "check")
    remembered(Pledges, "read")


def remembered(kind: type, name: str) -> None:
    """Compute something of a plan once: there is one, and one roster."""
    found: dict[int, Any] = {}
    made = getattr(kind, name)

    def once(self: Any, *same: Any) -> Any:
        if id(self) not in found:
            found[id(self)] = made(self, *same)
        return found[id(self)]

    setattr(kind, name, once)


def hold(args: argparse.Namespace) -> None:
    """Some of the devices, until the file `stop` appears."""
    from privirec.runtime.https.connection import ClientRevoked, Connection, Unreachable, trusting

    programs.register(Degrees)
    home = OperatorFolder(args.folder / "server")
    found = home.members
    roster, server_key = found.roster(), bytes.fromhex(found.server)
    catalogue = read_catalogue(home.folder / "catalogue.txt")
    policy = Policy.load(args.folder / "policy.toml")
    with np.load(args.folder / "histories.npz") as stored:
        indptr, indices = stored["indptr"], stored["indices"]
    share_plans()
    doomed = killed(args)
    tls = trusting(home.folder / "tls" / "ca.crt")
    totals = {"up": 0, "down": 0, "requests": 0, "first_checks": []}

    def device(client: int) -> Any:
        own = identity(args.seed, client)
        source = OnePerson(indices[indptr[client] : indptr[client + 1]], client, catalogue)
        count = 0

        def answer(message: bytes) -> bytes:
            nonlocal count
            count += 1
            if count == doomed.get(client):
                raise Killed
            node = Node(
                private_folder(args.folder / "clients" / str(client)),
                *(client, own, roster, server_key, catalogue, source, policy),
            )
            with contextlib.closing(node):
                return node.answer(message)

        return Connection(f"https://127.0.0.1:{args.port}", client, own, server_key, tls, answer)

    # Not all at once, nor before the run: they would be told to come back much later.
    due: queue.PriorityQueue[tuple[float, int]] = queue.PriorityQueue()
    made = {client: device(client) for client in range(args.first, args.last)}
    for client in made:
        start = 3 + random.uniform(0, args.clients / 100)  # noqa: S311
        due.put((time.monotonic() + start, client))
    over = threading.Event()

    def stay() -> None:
        """Let whoever has waited longest have its turn."""
        while not over.is_set():
            try:
                when, client = due.get(timeout=0.5)
            except queue.Empty:
                continue
            if (early := when - time.monotonic()) > 0:
                due.put((when, client))
                over.wait(min(early, 0.05))
                continue
            try:
                pause = made[client].turn()
            except Unreachable as error:
                pause = made[client].back_off(error)
            except (Killed, ClientRevoked):
                made[client].close()
                continue
            due.put((time.monotonic() + pause, client))

    workers = [threading.Thread(target=stay) for _ in range(AT_ONCE)]
    for worker in workers:
        worker.start()
    while not (args.folder / "stop").exists():
        time.sleep(0.5)
    over.set()
    for worker in workers:
        worker.join()
    for one in made.values():
        totals["up"] += one.bytes_up
        totals["down"] += one.bytes_down
        totals["requests"] += one.requests
    usage = resource.getrusage(resource.RUSAGE_SELF)
    totals |= {"cpu": usage.ru_utime + usage.ru_stime, "peak_mb": usage.ru_maxrss / 1024}
    (args.folder / f"held-{args.first}.json").write_text(json.dumps(totals))


# --- the server -----------------------------------------------------------------------------------


def serve(args: argparse.Namespace) -> None:
    """The server, which also leaves each opened sum and what was asked for."""
    from privirec.models import MODELS
    from privirec.models.popularity import Popularity
    from privirec.runtime.carriers import Listening
    from privirec.runtime.coordinator import computation
    from privirec.runtime.https.server import serve as serve_https

    programs.register(Degrees)
    MODELS[Popularity.name] = Popularity
    total_of, opened = computation.total_of, iter(range(1, 1000))

    def noting(ask: Any, *rest: Any) -> Any:
        total = total_of(ask, *rest)
        number = next(opened)
        (args.folder / f"ask-{number}").write_bytes(wire.encode(ask))
        np.save(args.folder / f"total-{number}.npy", total)
        return total

    computation.total_of = noting
    serve_https(
        OperatorFolder(args.folder / "server"),
        Listening("127.0.0.1", args.port, args.watched_port),
    )


# --- all of it ------------------------------------------------------------------------------------


def prepare(args: argparse.Namespace) -> Interactions:
    """Folders, keys, roster and histories."""
    from privirec.data import load_dataset

    whole = load_dataset(args.dataset).train
    train = whole.rows(0, args.clients)
    home = OperatorFolder.create(args.folder / "server")
    make_certificates(home.folder / "tls")
    write_catalogue(home.folder / "catalogue.txt", Catalogue(train.item_ids))
    alike = args.clients - args.programs
    keys = [identity(args.seed, client).public for client in range(alike)]
    programs = [ClientFolder.create(path) for path in program_folders(args)]
    keys += [one.identity.public for one in programs]
    approved = [
        Approved(client=client, name=f"device-{client}", key=key.hex(), node=NODE_KEY)
        for client, key in enumerate(keys)
    ]
    named = ServerNamed(key=home.members.server)
    home.save(RosterFile(operator=home.operator, changes=(named, *approved)))
    matrix = train.matrix
    np.savez(args.folder / "histories.npz", indptr=matrix.indptr, indices=matrix.indices)
    some = max(1, min(100, args.clients // 4))
    shared = {"fewest_other_people": some, "smallest_change": some}
    policy = allowing((ItemDegrees.name,), **shared) if args.program == "degrees" else Policy()
    policy = policy.model_copy(update={"largest_dropped_share": max(DROP_SHARE, 0.2)})
    (args.folder / "policy.toml").write_text(policy.as_toml())
    private_folder(args.folder / "clients")
    for client, one in enumerate(programs, alike):
        shutil.copy(home.folder / "catalogue.txt", one.folder)
        shutil.copy(home.folder / "tls" / "ca.crt", one.folder)
        shutil.copy(args.folder / "policy.toml", one.folder)
        one.join(home.members, server=f"https://127.0.0.1:{args.port}")
        with Store(one.folder / one.settings.histories, create=True) as store:
            store.add_interactions(train.rows(client, client + 1))
    return train


def program_folders(args: argparse.Namespace) -> list[Path]:
    """Of the clients that are programs of their own."""
    return [args.folder / f"program-{number}" for number in range(args.programs)]


def run_file(args: argparse.Namespace, train: Interactions) -> Any:
    times = {"hello": args.step_seconds, "deadline": args.step_seconds}
    if args.program == "protected":
        spec = RunSpec.of("protected", epsilon=8.0, drop_share=DROP_SHARE, **times)
        return spec.resolved("", train.n_items, args.clients)
    return RunSpec(program=DegreesSettings(), model="popularity", drop_share=DROP_SHARE, **times)


@contextlib.contextmanager
def everything(args: argparse.Namespace) -> Iterator[Processes]:
    """The server's process, which is the first one, and those of the devices."""
    one = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
    env = dict(os.environ) | one
    common = [
        *("--folder", str(args.folder), "--port", str(args.port), "--clients", str(args.clients)),
        *("--kill-share", str(args.kill_share), "--seed", str(args.seed)),
        *("--watched-port", str(args.watched_port), "--programs", str(args.programs)),
    ]
    alike = args.clients - args.programs
    edges = np.linspace(0, alike, args.processes + 1).astype(int).tolist()
    with Processes() as running:
        command = [sys.executable, __file__, "serve", *common]
        server = running.start("server", command, env, args.folder / "server.log")
        wait_for_port("127.0.0.1", args.port, server)
        # The first start compiles modules, unless installing has; it is later ones that count.
        later = {key: env[key] for key in env.keys() - {"PYTHONDONTWRITEBYTECODE"}}
        for path in program_folders(args):
            answers = [first_answer(path, later) for _ in range(1 + STARTS)][1:]
            (path / "first-answers.json").write_text(json.dumps(answers))
        for first, last in itertools.pairwise(edges):
            bounds = ["--first", str(first), "--last", str(last)]
            command = [sys.executable, __file__, "hold", *common, *bounds]
            running.start(f"devices {first}", command, env, args.folder / f"hold-{first}.log")
        for path in program_folders(args):
            running.start(path.name, client_command(path), later, path / "client.out")
        yield running
        (args.folder / "stop").touch()
        for _ in range(300):
            held = [one for one in running.running if one.name.startswith("devices")]
            if all(one.process.poll() is not None for one in held):
                break
            time.sleep(0.2)


def client_command(path: Path) -> list[str]:
    return [sys.executable, "-m", "privirec", "client", "up", str(path)]


def first_answer(path: Path, env: dict[str, str]) -> float:
    """Seconds from the start of `privirec client up` until its server has answered it."""
    began = time.monotonic()
    with subprocess.Popen(
        client_command(path), env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        try:
            if not any(line.strip() == "Connected" for line in process.stdout):
                raise SystemExit(f"{path}: the client has ended without an answer")
            return time.monotonic() - began
        finally:
            process.send_signal(signal.SIGINT)


def is_right(args: argparse.Namespace, train: Interactions) -> dict[str, Any]:
    """Compare the first opened sum with the exact one of the clients in it."""
    from privirec.runtime.coordinator.journal import RunJournal, StepEnded

    journal = RunJournal(args.folder / "server" / "runs" / "devices")
    ended = [event for event, _ in journal.events() if isinstance(event, StepEnded)]
    if len(ended) < 3 or not (args.folder / "total-1.npy").exists():
        return {"right": False}
    cohort = np.array(sorted(ended[2].clients))  # after advertise and share: the first input
    ask = wire.decode((args.folder / "ask-1").read_bytes())
    total = np.load(args.folder / "total-1.npy")
    histories = Histories(train.matrix[cohort], 0)
    if args.program == "degrees":
        right = bool((total == histories.item_degrees).all())
        return {"right": right, "cohort": len(cohort)}
    exact = np.concatenate(list(ask.exact_blocks(histories)))
    deviation = float((total - exact).std())
    promised = ask.deviation * len(cohort) ** 0.5
    right = abs(deviation / promised - 1) < 5 / (2 * len(exact)) ** 0.5
    return {"right": right, "cohort": len(cohort), "noise_found_of_promised": deviation / promised}


def plan_check_seconds(args: argparse.Namespace) -> dict[str, float]:
    """What one device alone pays for the plan of this run."""
    from privirec.runtime.coordinator.journal import Planned as PlannedEvent
    from privirec.runtime.coordinator.journal import RunJournal

    journal = RunJournal(args.folder / "server" / "runs" / "devices")
    text = next((c for event, c in journal.events() if isinstance(event, PlannedEvent)), b"")
    if not text:
        return {}
    roster = OperatorFolder(args.folder / "server").members.roster()
    began = time.process_time()
    plan = RunPlan.parse(text)
    plan.pledges.read(roster)
    plan.pledges.check(plan.run, roster)
    return {"plan_check_seconds": time.process_time() - began, "plan_bytes": len(text)}


def largest(one: Running) -> float:
    """Megabytes that a program has had at most."""
    status = Path(f"/proc/{one.process.pid}/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e6


def measure(args: argparse.Namespace) -> dict[str, Any]:
    import psutil

    from privirec.errors import FederationError
    from privirec.runtime.https.runs import follow_run, start_run

    train = prepare(args)
    file = run_file(args, train)
    home = OperatorFolder(args.folder / "server")
    began = time.monotonic()
    peak = 0.0
    steps: dict[str, float] = {}

    def watch(status: dict[str, Any]) -> None:
        nonlocal peak
        with contextlib.suppress(psutil.Error):
            peak = max(peak, watched.memory_info().rss / 1e6)
        where = f"{status.get('stage', '')} {status.get('sum_number', '')} {status.get('step', '')}"
        if where not in steps:
            steps[where] = time.monotonic() - began
            print(f"{steps[where]:7.1f} s  {where}", file=sys.stderr, flush=True)
        if time.monotonic() - began > args.most_seconds:
            raise FederationError(f"not done after {args.most_seconds:.0f} s")

    with everything(args) as running:
        watched = psutil.Process(running.running[0].process.pid)
        time.sleep(1)
        start_run(home, "devices", file)
        try:
            result = follow_run(home, "devices", watch)
        except FederationError as error:
            result = {"reason": str(error), "seconds": time.monotonic() - began, "status": {}}
        times = watched.cpu_times()
        programs = [largest(one) for one in running.running if one.name.startswith("program")]
    held = [json.loads(path.read_text()) for path in args.folder.glob("held-*.json")]
    states: dict[str, int] = {}
    for client in result.get("status", {}).get("clients", {}).values():
        states[client["state"]] = states.get(client["state"], 0) + 1
    requests = sum(one["requests"] for one in held)
    n = args.clients
    return {
        "program": args.program,
        "clients": n,
        "killed": len(killed(args)),
        "reason": result["reason"],
        **is_right(args, train),
        "states": states,
        "seconds": result["seconds"],
        "server_peak_mb": peak,
        "server_cpu_seconds": times.user + times.system,
        "requests": requests,
        "requests_per_second": requests / result["seconds"],
        "requests_per_client": requests / n,
        "client_cpu_seconds": sum(one["cpu"] for one in held) / n,
        "bytes_up_per_client": sum(one["up"] for one in held) / n,
        "bytes_down_per_client": sum(one["down"] for one in held) / n,
        "device_process_peak_mb": max((one["peak_mb"] for one in held), default=0.0),
        "program_peak_mb": max(programs, default=None),
        "program_first_answer_seconds": sorted(
            seconds
            for path in program_folders(args)
            for seconds in json.loads((path / "first-answers.json").read_text())
        ),
        **plan_check_seconds(args),
        "load_average": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="?", default="all", choices=("all", "serve", "hold"))
    parser.add_argument("--program", choices=("protected", "degrees"), default="protected")
    parser.add_argument("--dataset", default="gowalla")
    parser.add_argument("--clients", type=int, default=2000)
    parser.add_argument("--kill-share", type=float, default=0.05)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--programs", type=int, help="of the clients; by default one if protected")
    parser.add_argument("--step-seconds", type=float, default=180.0, help="for one step of the run")
    parser.add_argument("--most-seconds", type=float, default=3600.0, help="for all of it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="kept; by default one that is removed")
    parser.add_argument("--json", type=Path, help="add the row to this file")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--watched-port", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--last", type=int, default=0)
    args = parser.parse_args()
    if args.part != "all":
        {"serve": serve, "hold": hold}[args.part](args)
        return
    programs.register(Degrees)
    if args.programs is None:
        args.programs = int(args.program == "protected")
    args.port = args.port or free_port()
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - a disk for each device
    with contextlib.ExitStack() as stack:
        if args.folder is None:
            made = tempfile.TemporaryDirectory(prefix="privirec-devices-", dir=memory)
            args.folder = Path(stack.enter_context(made))
        row = measure(args)
    print(json.dumps(row, indent=1))
    if args.json is not None:
        with args.json.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    if row["reason"] or not row["right"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
