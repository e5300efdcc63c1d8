"""The plan of a run: one model, one method, and their settings."""

from __future__ import annotations

import json
import shlex
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from privirec.errors import UsageError
from privirec.federated.dp.gaussian import DEFAULT_DELTA
from privirec.federated.programs import (
    DEFAULT_RANK,
    PROGRAMS,
    Program,
    ProgramSettings,
    SpectralProgram,
    preset_names,
    program_of,
)
from privirec.federated.programs.protected import Protected, ProtectedSettings
from privirec.federated.programs.spectral import USUAL_RING_BITS
from privirec.models import MODELS, Recommender
from privirec.privacy.worth import promise
from privirec.runtime.spec import (
    DEFAULT_MODEL,
    DROPPED_SHARE,
    DROPPED_SHARE_ON_ONE_MACHINE,
    Assumptions,
    RunSpec,
    computes,
)
from privirec.secagg import Guarantee, protocol, protocol_names

CENTRALIZED = "centralized"
"""The method without clients: all histories on one machine."""
AUTO = "auto"
"""In place of a model: the commands `run` and `fit` choose one on a validation split."""
PUBLISHED = "published"
"""The preset that changes no program: the models' published settings."""
RUNTIMES = ("simulation", "in-process")
NETWORK = "network"
"""Runtime of clients that are processes or machines of their own."""
SOLVERS = ("converged", "power-1qr", "power-2qr")

IN_THE_CLEAR = (
    "Warning: without secure aggregation the server sees every client's contribution in the clear."
)
BLURRED = (
    "Warning: this is not secure aggregation: the server sees every client's contribution, "
    "blurred; docs/reference/correlated-noise.md says what that hides."
)


def server_sees(aggregator: str) -> str | None:
    """Return a warning if the server sees more than sums; it is shown before the run starts."""
    guarantee = protocol(aggregator).guarantee
    return {Guarantee.NONE: IN_THE_CLEAR, Guarantee.STATISTICAL: BLURRED}.get(guarantee)


def methods() -> list[str]:
    """Return the names of all methods: the centralised one, and the federated programs."""
    return [CENTRALIZED, *PROGRAMS]


def methods_in_short(names: Container[str]) -> str:
    """Return a short description of each of these methods, for help texts."""
    known = {CENTRALIZED: "all histories on this machine, without clients"}
    known |= {name: program.in_short for name, program in PROGRAMS.items()}
    named: dict[str, list[str]] = {}
    for name, text in known.items():
        if name in names:
            named.setdefault(text, []).append(name)
    return "; ".join(f"{', '.join(same)}: {text}" for text, same in named.items()) + "."


def presets() -> list[str]:
    return [PUBLISHED, *preset_names()]


def outlook(settings: ProgramSettings, n_users: int, n_items: int) -> str | None:
    """Return a sentence on the accuracy to expect with this many people, for a noisy program."""
    program = program_of(settings, n_users, n_items)
    return program.outlook() if isinstance(program, Protected) else None


def gives_away(
    method: str, dataset: Sequence[str] | None = None, promised: str | None = None
) -> str | None:
    """Return a sentence on what a release reveals, for every command that makes one.

    `dataset` holds the words after `--dataset` on a command line that reads the same data.
    `promised` says what noise promises (`privacy.worth`), if it is known.
    """
    if method not in PROGRAMS:
        return None
    beginning = "Gives away" if PROGRAMS[method].protects else "Warning:"
    warning = f"{beginning} {PROGRAMS[method].gives_away}"
    if promised is not None:
        warning += f". {promised.removesuffix('.')}"
    if dataset is None:
        return f"{warning}; privirec audit --release {method} --dataset DATA shows it on any data"
    command = shlex.join(["privirec", "audit", "--release", method, "--dataset", *dataset])
    return f"{warning}; see for yourself: {command}"


def is_noisy(method: str) -> bool:
    """Return True if the clients of a method add noise for differential privacy."""
    return method in PROGRAMS and PROGRAMS[method].protects


def usual_dropped_share(method: str) -> float:
    """Return the default share of clients that may drop out of a run on one machine.

    A noisy method uses the share of a network, so that its results are those of a network.
    """
    return DROPPED_SHARE if is_noisy(method) else DROPPED_SHARE_ON_ONE_MACHINE


@dataclass(frozen=True)
class Plan:
    """Model, method and settings of a run. Settings that are None come from the preset."""

    model: str | None = None
    """Name of the model. None selects the one that the method is made for, or the default."""
    method: str = CENTRALIZED
    preset: str = PUBLISHED
    rank: int | None = None
    rounds: int | None = None
    head: int | None = None
    """Number of most popular items to use, for a model or program that has a head."""
    solver: str = "converged"
    """Solver of centralised singular vectors: converged, or `rounds` power steps.

    Each power step has one or two QR factorisations.
    """
    runtime: str = "simulation"
    clients: int | None = None
    aggregator: str = "none"
    drop_share: float = 0.0
    """Share of the clients that drop out before the first sum (secure aggregation only)."""
    assumptions: Assumptions | None = None
    seed: int = 0
    secret_noise: bool = False
    """True if noise comes from the system's randomness: it cannot be repeated, and it protects."""
    threads: int | None = None
    federated: dict[str, Any] = field(default_factory=dict)
    """Further settings of the federated program, by name."""
    config: dict[str, Any] = field(default_factory=dict)
    """Settings of the model, by name, which replace its published ones."""
    warm: Path | None = None
    """Saved model whose basis the program starts from, if it supports this."""

    @property
    def program(self) -> type[Program[Any]] | None:
        """Federated program that the clients compute; None without clients."""
        return None if self.method == CENTRALIZED else PROGRAMS.named(self.method)

    @property
    def model_name(self) -> str:
        made_for = self.program.usual_model if self.program else None
        return self.model or made_for or DEFAULT_MODEL

    @property
    def noise_seed(self) -> int | None:
        """Seed of the clients' noise; None for noise that nobody can repeat."""
        return None if self.secret_noise else self.seed

    @property
    def noisy(self) -> bool:
        """True if clients add noise, so that the number of clients matters."""
        return is_noisy(self.method)

    def check(self) -> None:
        """Raise UsageError for unknown names, and for options that would have no effect."""
        choices = (
            ("model", self.model_name, [*MODELS, AUTO]),
            ("method", self.method, methods()),
            ("preset", self.preset, presets()),
            ("runtime", self.runtime, (*RUNTIMES, NETWORK)),
            ("solver", self.solver, SOLVERS),
            ("aggregator", self.aggregator, protocol_names()),
        )
        for what, chosen, known in choices:
            if chosen not in known:
                raise UsageError(f"no {what} {chosen!r}; there are {', '.join(known)}")
        if self.program is None:
            idle = {
                f"the preset {self.preset}": self.preset != PUBLISHED,
                "a runtime": self.runtime != "simulation",
                "clients": self.clients,
                "an aggregator": self.aggregator != "none",
                "drop-outs": self.drop_share,
                "secret noise": self.secret_noise,
                **{key.replace("_", "-"): True for key in self.federated},
            }
            for name, given in idle.items():
                if given:
                    raise UsageError(f"{name} does not go with the method {self.method}")
            if self.rounds and self.solver == "converged":
                raise UsageError(
                    f"rounds go with {self.method} only for the solvers power-1qr, -2qr"
                )
            return
        if self.solver != "converged":
            raise UsageError(f"a solver is chosen for {CENTRALIZED}; with clients --rounds counts")
        if self.runtime == "simulation" and (
            (self.clients and not self.noisy) or self.drop_share or self.aggregator != "none"
        ):
            raise UsageError("clients, drop-outs and aggregators need --runtime in-process")
        if self.warm is not None and not issubclass(self.program, SpectralProgram):
            raise UsageError(f"{self.method} does not begin with an earlier model")
        if self.drop_share and self.aggregator == "none":
            raise UsageError("drop-outs need secure aggregation: --aggregator secagg+")

    def recommender(self, dataset: str, n_items: int) -> Recommender:
        """Return the model with its published settings for this data set, or its defaults.

        A rank that was not chosen explicitly is limited to the number of items. The low-pass
        filter of a low-rank program uses the leading vectors, as many as the model uses with other
        programs (S_p in the paper's diagram).
        """
        self.check()
        kind = MODELS.named(self.model_name)
        config = kind.published.get(dataset, kind.config_type())
        if self.config:
            config = kind(**self.config).config
        if self.head is not None:
            if "head" not in kind.config_type.model_fields:
                raise UsageError(f"{self.model_name} does not know a head of popular items")
            config = config.model_copy(update={"head": self.head})
        program = self.program
        if program is not None and program.usual_model == self.model_name:
            chosen = dict(program.preset_models.get(self.preset, {}))
            if "rank" in program.presets.get(self.preset, {}):
                chosen["rank"] = program.presets[self.preset]["rank"]
            config = config.model_copy(update=chosen)
        usual = config.low_pass_rank
        low_rank = program is not None and program.low_rank
        if program is not None and program.usual_model == self.model_name:
            low_rank = False  # The model uses all vectors, and requests exactly as many.
        if not usual:
            if self.rank is not None and not low_rank:
                raise UsageError(
                    f"{self.model_name} has no low-pass filter whose rank could be set"
                )
            return kind(config)
        rank = min(usual, n_items) if self.rank is None else self.rank
        return kind(config.model_copy(update={"rank": min(usual, rank) if low_rank else rank}))

    def settings(self, recommender: Recommender, n_items: int, n_clients: int) -> ProgramSettings:
        """Return the program settings that compute this model's components with the clients."""
        program = self.program
        if program is None:
            raise UsageError(f"the method {self.method} asks no clients")
        config = recommender.config
        rank = config.low_pass_rank
        if program.low_rank:
            rank = self.rank or rank or min(DEFAULT_RANK, n_items)
        if not computes(program, config):
            raise UsageError(f"{self.method} does not compute what {self.model_name} needs")
        offered = {**config.needs, "rank": rank, "seed": self.seed}
        head = program.settings_type.model_fields.get("head")
        if head is not None and "head" not in config.needs and head.default is not None:
            if self.head is None:
                raise UsageError(f"{self.method} needs a head: how many of the most popular items")
            offered["head"] = self.head
        if self.noisy:
            assumed = self.assumptions or Assumptions()
            offered |= {"clients": n_clients, "contributors": assumed.contributors(n_clients)}
        given = dict(self.federated)
        if self.warm is not None:
            given = self._of_one_round() | given | {"start": "basis"}
        if self.rounds is not None:
            given["rounds"] = self.rounds
        preset = None if self.preset == PUBLISHED else self.preset
        settings: ProgramSettings = program.settings_from(given, offered, preset)
        return settings

    def spec(self, dataset: str, n_items: int, n_clients: int) -> RunSpec:
        """Return the description of this run for clients on a network."""
        recommender = self.recommender(dataset, n_items)
        settings = self.settings(recommender, n_items, n_clients)
        said = None
        if isinstance(settings, ProtectedSettings):
            said = promise(settings.epsilon, settings.delta or DEFAULT_DELTA)
        return RunSpec(
            **(self.assumptions or Assumptions()).model_dump(),
            program=settings,
            model=self.model_name,
            config=recommender.config.model_dump(),
            aggregator=self.aggregator,
            threads=self.threads,
            notes={"gives_away": gives_away(self.method, promised=said) or ""},
        )

    def _of_one_round(self) -> dict[str, Any]:
        """Return the settings of a warm start's single round, which replace those of the preset.

        The preset's settings are meant for several rounds, which correct each other's rounding
        errors. A single round cannot, so it needs a ring that is wide enough. Its block is the old
        basis and some more columns, which four bits per entry would not keep apart.
        """
        chosen = self.program.presets.get(self.preset, {}) if self.program else {}
        bits = max(chosen.get("ring_bits", 0), USUAL_RING_BITS)
        return {"columns": None, "ring_bits": bits, "block_bits": 8}


def read_settings(path: Path) -> dict[str, Any]:
    """Return the method, program settings, model and config that `privirec paper tune` saved."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read as settings ({error})") from None
    kinds = {"method": str, "program": dict, "model": str, "config": dict}
    if not isinstance(found, dict) or {key: type(found[key]) for key in found} != kinds:
        raise UsageError(f"{path}: settings have {', '.join(kinds)}")
    return found
