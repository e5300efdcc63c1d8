"""Options of a run, declared once for `run`, `federate` and `server run`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from privirec.app.cli import options
from privirec.app.cli.groups import PANEL
from privirec.errors import UsageError
from privirec.federated.programs import (
    DEFAULT_PROGRAM,
    DEFAULT_ROUNDS,
    PROGRAMS,
    PrivirecKSettings,
    PrivirecSettings,
)
from privirec.federated.programs.power import PowerSettings
from privirec.federated.programs.spectral import SpectralSettings
from privirec.runtime.plan import (
    CENTRALIZED,
    PUBLISHED,
    RUNTIMES,
    SOLVERS,
    Plan,
    methods,
    methods_in_short,
    presets,
    read_settings,
    usual_dropped_share,
)
from privirec.runtime.spec import (
    CORRUPT_SHARE,
    DEFAULT_AGGREGATOR,
    DROPPED_SHARE,
    SERVER_ON_ONE_MACHINE,
    SMALLEST_COHORT,
    Assumptions,
    Deadlines,
)
from privirec.secagg import ServerModel, protocol_names

_NOISE = {PANEL: "Noise (method protected)"}
_SPECTRAL = {PANEL: "Method spectral"}
_POWER = {PANEL: "Power methods (privirec, privirec-k)"}
_SUMS = {PANEL: "Secure aggregation"}
_ONE_MACHINE = {PANEL: "Simulation on this machine"}
_NETWORK = {PANEL: "Clients on a network"}

Preset = Annotated[
    str,
    options.one_of(
        presets(),
        metavar="NAME",
        help=f"Preset: {', '.join(presets())}. DATA-NMB: spectral, tuned for N megabytes up.",
    ),
]
Settings = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Method, model and settings that privirec paper tune found.",
        show_default=False,
    ),
]
Rank = Annotated[
    int | None, typer.Option(min=1, metavar="K", help="Vectors of the low-pass filter.")
]
Rounds = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="L",
        help=f"Secure sums of the power method (default {DEFAULT_ROUNDS}; preset paper: 2).",
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="SIZES",
        help="Columns of each round, as 8x128 or 256,128,128 (default: 1.5 times the rank, in "
        "eight rounds).",
        show_default=False,
    ),
]
BlockBits = Annotated[
    int | None,
    typer.Option(
        metavar="BITS",
        help="Bits per entry sent to clients: 4, 8 or 16 (default 4).",
        show_default=False,
    ),
]
Pairs = Annotated[
    str | None,
    options.one_of(
        options.choices_of(SpectralSettings, "pairs"),
        metavar="WAY",
        help="Way to eigenpairs: nystrom (default) or rayleigh-ritz.",
    ),
]
Start = Annotated[
    str | None,
    options.one_of(
        options.choices_of(PowerSettings, "start"),
        metavar="BLOCK",
        help="Start block: items (from a public seed), users (one row per user).",
    ),
]
Eigenvalues = Annotated[
    str | None,
    options.one_of(
        options.choices_of(PrivirecKSettings, "eigenvalues"),
        metavar="WAY",
        help="privirec-k: rayleigh-ritz, or diagonal (of the QR factor).",
    ),
]
LowPassFrom = Annotated[
    str | None,
    options.one_of(
        options.choices_of(PrivirecSettings, "low_pass_from"),
        metavar="PLACE",
        help="privirec: low-pass filter from the clients or the server.",
    ),
]
RingBits = Annotated[
    int | None,
    typer.Option(
        min=1, max=64, metavar="BITS", help="Width of the ring (default 32; spectral 12)."
    ),
]
Aggregator = Annotated[
    str,
    options.one_of(
        protocol_names(),
        metavar="NAME",
        help=f"Protocol for sums: {', '.join(protocol_names())}. none: the server sees each "
        "contribution.",
    ),
]
DropShare = Annotated[
    float,
    typer.Option(
        min=0,
        max=0.5,
        metavar="X",
        callback=options.finite,
        help="Share of clients that may (privirec run: do) drop out.",
    ),
]

PROGRAM_SETTINGS = (
    *("epsilon", "delta", "way", "columns", "block_bits", "pairs", "settle", "ring_bits"),
    *("start", "eigenvalues", "low_pass_from"),
)
"""Options that are settings of the federated program."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options that every command has that runs a program with clients."""

    method: Annotated[
        str,
        options.one_of(PROGRAMS, metavar="NAME", help=f"Method. {methods_in_short(PROGRAMS)}"),
    ] = DEFAULT_PROGRAM
    model: options.Model = None
    preset: Preset = PUBLISHED
    settings: Settings = None
    rank: Rank = None
    rounds: Rounds = None
    head: options.Head = None
    seed: options.Seed = 0
    threads: options.Threads = None
    json_file: options.Json = None
    epsilon: options.Epsilon = field(default=None, metadata=_NOISE)
    delta: options.Delta = field(default=None, metadata=_NOISE)
    way: options.Way = field(default=None, metadata=_NOISE)
    columns: Columns = field(default=None, metadata=_SPECTRAL)
    block_bits: BlockBits = field(default=None, metadata=_SPECTRAL)
    pairs: Pairs = field(default=None, metadata=_SPECTRAL)
    settle: options.Settle = field(default=None, metadata=_SPECTRAL)
    start: Start = field(default=None, metadata=_POWER)
    eigenvalues: Eigenvalues = field(default=None, metadata=_POWER)
    low_pass_from: LowPassFrom = field(default=None, metadata=_POWER)
    aggregator: Aggregator = field(default=DEFAULT_AGGREGATOR, metadata=_SUMS)
    drop_share: DropShare = field(default=DROPPED_SHARE, metadata=_SUMS)
    corrupt_share: options.CorruptShare = field(default=CORRUPT_SHARE, metadata=_SUMS)
    server_model: options.ServerModelName = field(default=ServerModel.ACTIVE, metadata=_SUMS)
    ring_bits: RingBits = field(default=None, metadata=_SUMS)

    def plan(self, **more: Any) -> Plan:
        """Return the plan of this run; `more` are fields of Plan that only one command has."""
        method, model, config = self.method, self.model, {}
        chosen = options.given(**{name: getattr(self, name) for name in PROGRAM_SETTINGS})
        if self.settings is not None:
            found = read_settings(self.settings)
            method, config = found["method"], found["config"]
            model = model or found["model"]
            chosen = found["program"] | chosen
        return Plan(
            model=model,
            method=method,
            preset=self.preset,
            rank=self.rank,
            rounds=self.rounds,
            head=self.head,
            aggregator=self.aggregator,
            assumptions=Assumptions(
                corrupt_share=self.corrupt_share,
                dropped_share=self.tolerated_drop_share(method),
                server=self.server_model,
            ),
            seed=self.seed,
            threads=self.threads,
            federated=chosen,
            config=config,
            **more,
        )

    def tolerated_drop_share(self, method: str) -> float:
        """Return the share of clients that may drop out of a run with this method."""
        return self.drop_share


@dataclass(frozen=True, kw_only=True)
class OneMachineOptions(RunOptions):
    """Options of `privirec run`: also without clients, and with clients in this process."""

    method: Annotated[
        str,
        options.one_of(methods(), metavar="NAME", help=f"Method. {methods_in_short(methods())}"),
    ] = CENTRALIZED
    model: options.ModelOrAuto = None
    aggregator: Aggregator = field(default="none", metadata=_SUMS)
    drop_share: DropShare = field(default=0.0, metadata=_SUMS)
    server_model: options.ServerModelName = field(default=SERVER_ON_ONE_MACHINE, metadata=_SUMS)
    solver: Annotated[
        str,
        options.one_of(
            SOLVERS,
            metavar="NAME",
            help=f"centralized: {', '.join(SOLVERS)} (--rounds steps, one or two QR).",
        ),
    ] = field(default="converged", metadata=_ONE_MACHINE)
    runtime: Annotated[
        str,
        options.one_of(
            RUNTIMES,
            metavar="NAME",
            help="simulation: all users in one matrix; in-process: client by client.",
        ),
    ] = field(default="simulation", metadata=_ONE_MACHINE)
    clients: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Number of silos (default: one client per user)."),
    ] = field(default=None, metadata=_ONE_MACHINE)
    secret_noise: Annotated[
        bool,
        typer.Option(
            "--secret-noise",
            help="Draw noise that nobody can repeat, not from --seed: epsilon then holds.",
        ),
    ] = field(default=False, metadata=_NOISE)
    warm: Annotated[
        Path | None,
        typer.Option(
            metavar="MODEL",
            help="Start from the basis of this saved model, in one round.",
            show_default=False,
        ),
    ] = field(default=None, metadata=_SPECTRAL)

    def tolerated_drop_share(self, method: str) -> float:
        return max(usual_dropped_share(method), self.drop_share)

    def checked_plan(self) -> Plan:
        """Return the plan; raise UsageError for options that would have no effect."""
        plan = self.plan(
            solver=self.solver,
            runtime=self.runtime,
            clients=self.clients,
            drop_share=self.drop_share,
            secret_noise=self.secret_noise,
            warm=self.warm,
        )
        if self.aggregator == "none":
            # Without masks there are no secret shares; only noise depends on the corrupt share.
            if self.corrupt_share != CORRUPT_SHARE and not plan.noisy:
                raise UsageError(
                    "--corrupt-share goes with an --aggregator, or with noise (protected)"
                )
            if self.server_model != SERVER_ON_ONE_MACHINE:
                raise UsageError("--server-model goes with an --aggregator: secagg+ or secagg")
        return plan


@dataclass(frozen=True, kw_only=True)
class ServerRunOptions(RunOptions):
    """Options of `privirec server run`: also the waiting times of a network."""

    smallest_cohort: Annotated[
        int, typer.Option(min=2, metavar="N", help="Smallest number of clients in a sum.")
    ] = field(default=SMALLEST_COHORT, metadata=_NETWORK)
    hello: Annotated[
        float,
        typer.Option(
            min=1, metavar="SECONDS", callback=options.finite, help="Time to wait for clients."
        ),
    ] = field(default=120.0, metadata=_NETWORK)
    deadline: Annotated[
        float,
        typer.Option(
            min=1,
            metavar="SECONDS",
            callback=options.finite,
            help="Time limit for each step of a run.",
        ),
    ] = field(default=1800.0, metadata=_NETWORK)

    def deadlines(self) -> Deadlines:
        steps = ("setup", "preparation", "input", "recovery", "artifact")
        return Deadlines(hello=self.hello, **dict.fromkeys(steps, self.deadline))
