"""The description of a run, and the secure-aggregation parameters that follow from it.

The defaults of a run are defined here, or in the program or model they belong to.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
)

from privirec.compiled import Later
from privirec.errors import OverflowRefused, UsageError
from privirec.federated.contributions import PlannedSum
from privirec.federated.dp.gaussian import DEFAULT_DELTA
from privirec.federated.programs import (
    DEFAULT_RANK,
    DEFAULT_ROUNDS,
    PROGRAMS,
    Program,
    ProtectedSettings,
    preset_names,
    settings_of,
)
from privirec.federated.programs.power import MOST_ROUNDS
from privirec.federated.programs.spectral import USUAL_RING_BITS
from privirec.federated.settings import MethodSettings, Option, first_fault, validated
from privirec.privacy.policy import Aggregator
from privirec.privacy.worth import promise
from privirec.runtime.reveals import gives_away
from privirec.secagg import (
    TWO_SERVERS,
    ServerModel,
    Statement,
    VectorShape,
    aggregator_names,
    protocol,
)
from privirec.secagg.errors import ParametersInfeasible
from privirec.secagg.parameters import PPM, least_honest, most_missing, share_of
from privirec.secagg.protocol import DEFAULT_BLOCK_ENTRIES

if TYPE_CHECKING:
    from privirec.models import Recommender
    from privirec.models.base import Config

models = Later("privirec.models")

CENTRALIZED = "centralized"
"""The method without clients: all histories on one machine."""
AUTO = "auto"
"""In place of a model: the commands `run` and `fit` choose one on a validation split."""
PUBLISHED = "published"
"""The preset that changes no program: the models' published settings."""
DEFAULT_MODEL = "gf-cf"
DEFAULT_AGGREGATOR = "secagg+"
CORRUPT_SHARE = 0.05
DROP_SHARE = 0.2
SMALLEST_COHORT = 3
MOST_ITEMS = 100
"""Items of a history in sums by two servers, whose reports grow with the limit."""
MOST_COUNTED = 64
"""Size up to which a roster is checked for each number of clients that may come."""
DROP_SHARE_ON_ONE_MACHINE = 0.05
"""Lower than DROP_SHARE: clients in one process drop out only if the run asks for it."""
SERVER_ON_ONE_MACHINE = ServerModel.SEMI_HONEST
"""One process plays all roles, so there is nobody to deceive; sums and drop-outs are the same."""

_SUMS = "Secure aggregation"
NETWORK = "Clients on a network"
"""Heading of the options that only a run on a network has."""
_SIMULATION = "Simulation on this machine"
_Share = Annotated[float, Field(ge=0, le=0.5, allow_inf_nan=False)]
_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class CentralizedSettings(MethodSettings):
    """Settings of a computation on one machine, without clients."""

    method: Literal["centralized"] = "centralized"
    solver: Annotated[
        Literal["converged", "power-1qr", "power-2qr"], Option("NAME", _SIMULATION)
    ] = "converged"
    """centralized: converged vectors, or --rounds power steps with one or two QR each."""
    rounds: Annotated[int, Option("L")] = Field(DEFAULT_ROUNDS, ge=1, le=MOST_ROUNDS)
    """Number of steps of the power method."""


def settings_type(method: str) -> type[MethodSettings]:
    """Return the type of a method's settings."""
    return CentralizedSettings if method == CENTRALIZED else PROGRAMS.named(method).settings_type


def presets() -> list[str]:
    return [PUBLISHED, *preset_names()]


def _read_settings(given: Any) -> Any:
    if not isinstance(given, Mapping):
        return given
    try:
        if given.get("method") == CENTRALIZED:
            return validated(CentralizedSettings, given)
        return settings_of(given)
    except UsageError as error:
        raise ValueError(str(error)) from None


def _usual_model(known: dict[str, Any]) -> str:
    program = PROGRAMS.get(known["program"].method) if "program" in known else None
    return (program.usual_model if program else None) or DEFAULT_MODEL


class Assumptions(BaseModel):
    """Shares of corrupt and dropped clients to tolerate, and the failure probabilities."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    corrupt_share: Annotated[_Share, Option("X", _SUMS)] = CORRUPT_SHARE
    """Share of clients that may collude with the server."""
    drop_share: Annotated[_Share, Option("X", _SUMS)] = DROP_SHARE
    """Share of clients that may (privirec run: do) drop out.

    They may do so before the first sum is opened.
    """
    security_bits: int = 40
    correctness_bits: int = 30
    server_model: Annotated[ServerModel, Option("NAME", _SUMS)] = ServerModel.ACTIVE
    """Server: active (may lie) or semi-honest.

    A server that may lie costs one more exchange.
    """

    def contributors(self, clients: int) -> int:
        """Return the fewest clients whose noise is in a sum and stays secret.

        At most `clients` - 1, because every client sees the model and knows its own noise.
        """
        return max(1, min(least_honest(self.statement(clients, 1)), clients - 1))

    def corrupt(self, clients: int) -> int:
        """Return the most clients of a sum whose noise is not secret, at least one of several."""
        return clients - 1 if clients <= 1 else max(1, self.statement(clients, 1).corrupt)

    def statement(self, clients: int, sums: int) -> Statement:
        """Return the threat and drop-out parameters for a roster of this many clients."""
        return Statement.of(
            clients,
            self.corrupt_share,
            self.drop_share,
            security_bits=self.security_bits,
            correctness_bits=self.correctness_bits,
            rounds=sums,
            server=self.server_model,
        )


Setting = str | int | float | bool | None | tuple[int, ...] | tuple[float, ...]
"""A value in the configuration of a model."""


class RunSpec(Assumptions):
    """Description of a run.

    The command line and the operator's page fill it in, `run.json` keeps it, the server signs it as
    part of the plan, each client's policy judges it, and the manifest of the model records it.
    A setting that nobody chose comes from the preset, the model or the program; `resolved` fills it
    in.
    """

    program: Annotated[SerializeAsAny[MethodSettings], BeforeValidator(_read_settings)]
    """Settings of the method, with its name in `method`."""
    model: Annotated[
        str,
        Option("NAME", "", "the one of the method, or gf-cf", choices=lambda: models.MODELS),
    ] = Field(default_factory=_usual_model)
    """Model."""
    config: dict[str, Setting] = Field(default_factory=dict)
    """Settings of the model."""
    preset: Annotated[str, Option("NAME", choices=presets)] = PUBLISHED
    """Settings that were chosen together. DATA-NMB: spectral, tuned for N megabytes up."""
    aggregator: Annotated[Aggregator, Option("NAME", _SUMS, choices=aggregator_names)] = (
        DEFAULT_AGGREGATOR
    )
    """Protocol for sums. none: the server sees each client's vector. two-server: one message each.
    """
    smallest_cohort: Annotated[int, Option("N", NETWORK)] = Field(SMALLEST_COHORT, ge=2)
    """Fewest clients in a sum."""
    block_entries: int = Field(DEFAULT_BLOCK_ENTRIES, gt=0)
    """Entries of a vector that are masked or added at a time."""
    part_bytes: int = Field(1 << 26, gt=0)
    """Approximate size of a message with a piece of the model."""
    hello: Annotated[_Seconds, Option("SECONDS", NETWORK)] = 120.0
    """Time to wait for clients."""
    deadline: Annotated[_Seconds, Option("SECONDS", NETWORK)] = 1800.0
    """Time limit for each step of a run."""
    silence: _Seconds = 300.0
    """Seconds without an answer after which the server sends a message again."""
    retry: _Seconds = 2.0
    """Seconds after a reported failure after which the server sends a message again."""
    threads: Annotated[int | None, Option("N", default="all cores")] = Field(None, ge=1)
    """Number of threads."""
    notes: dict[str, str] = Field(default_factory=dict)
    """Further facts for the manifest of the model."""

    @classmethod
    def of(cls, method: str = CENTRALIZED, **given: Any) -> Self:
        """Return the spec of a method; each setting goes to the run, its program or its model."""
        return validated(cls, {"program": {"method": method}}).changed(**given)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a spec, as `run.json` and `privirec paper tune` keep it, or raise UsageError."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise UsageError(f"{path}: cannot be read ({error.strerror})") from None
        except ValidationError as error:
            raise UsageError(f"{path}: no description of a run: {first_fault(error)}") from None

    def changed(self, **given: Any) -> Self:
        """Return the spec with other settings; each goes to the run, its program or its model."""
        values = {name: getattr(self, name) for name in self.model_fields_set}
        program, config = self.program.given(), dict(self.config)
        model = models.MODELS.get(given.get("model", self.model))
        for name, value in given.items():
            if name in type(self).model_fields:
                values[name] = value
            elif name in type(self.program).model_fields:
                program[name] = value
                config.pop(name, None)
            elif model is not None and name in model.config_type.model_fields:
                config[name] = value
            else:
                both = f"the method {self.method} and the model {given.get('model', self.model)}"
                raise UsageError(f"{name.replace('_', '-')} does not go with {both}")
        values["program"] = {"method": self.method, **program}
        values["config"] = given.get("config", config)
        return validated(type(self), values)

    def as_chosen(self) -> bytes:
        """Return the chosen settings alone, as JSON that `read` reads."""
        return f"{self.model_dump_json(indent=2, exclude_unset=True)}\n".encode()

    def given(self) -> dict[str, Any]:
        """Return the settings that were chosen for the model and the program."""
        return {**self.config, **self.program.given()}

    @property
    def method(self) -> str:
        return self.program.method

    @property
    def federated(self) -> type[Program[Any]] | None:
        """Federated program that the clients compute; None without clients."""
        return None if self.method == CENTRALIZED else PROGRAMS.named(self.method)

    @property
    def protected(self) -> bool:
        """True if noise protects every sum, so that the number of clients matters."""
        return self.federated is not None and self.federated.protects

    def least_clients(self, roster: int) -> int:
        """Return the fewest clients that can begin a run; absent clients count as dropped out."""
        return max(self.smallest_cohort, roster - self.statement(roster, 1).dropped)

    # --- settings that nobody chose ---------------------------------------------------------------

    def for_roster(self, dataset: str, n_items: int, n_clients: int) -> Self:
        """Return the resolved spec of a run on a network, for a roster of this many clients.

        Raises UsageError if clients are too few for what the run promises.
        """
        spec = self.with_usual_drop_share(n_clients).resolved(dataset, n_items, n_clients)
        spec.check_roster(n_clients)
        return spec

    def with_usual_drop_share(self, n_clients: int) -> Self:
        """Return the spec with the share of clients that may be missing, if nobody chose it.

        One client may be missing wherever clients bear it: also one of four.
        """
        usual = self.statement(n_clients, 1)
        if "drop_share" in self.model_fields_set or usual.dropped or n_clients > 1 / DROP_SHARE:
            return self
        most = most_missing(n_clients, usual.corrupt, self.server_model)
        return (
            self.model_copy(update={"drop_share": share_of(1, n_clients) / PPM}) if most else self
        )

    def check_roster(self, n_clients: int) -> None:
        """Raise UsageError if no run can end well with so many clients, present or missing."""
        if n_clients < self.smallest_cohort:
            raise UsageError(
                f"{n_clients} clients, and a sum needs {self.smallest_cohort}: approve more "
                "(--smallest-cohort and the policies of all clients can lower it to 2)"
            )
        statement = self.statement(n_clients, 1)
        chosen = protocol(self.aggregator)
        least = self.least_clients(n_clients)
        few = n_clients <= MOST_COUNTED
        for present in range(least, n_clients + 1) if few else (least, n_clients):
            try:
                chosen.parameters(statement.with_clients(present))
            except ParametersInfeasible:
                raise UsageError(self._too_few(n_clients, statement)) from None

    def _too_few(self, n_clients: int, statement: Statement) -> str:
        """Return why a roster is too small for its shares, with the remedy."""
        missing, corrupt = statement.dropped, statement.corrupt
        said = (
            f"{n_clients} clients are too few if {corrupt} may collude with the server "
            f"(--corrupt-share) and {missing} be missing (--drop-share)"
        )
        most = most_missing(n_clients, corrupt, self.server_model)
        if most is not None and most < missing:
            share = f"{share_of(most, n_clients) / PPM:g}"
            return f"{said}: give --drop-share {share}, and {most or 'nobody'} may be missing"
        return f"{said}: give a smaller share, or approve more clients"

    def resolved(self, dataset: str, n_items: int, n_clients: int) -> Self:
        """Return the spec with all settings, for a data set, a catalogue and a number of clients.

        Raises UsageError if the settings do not go together.
        """
        config = self._config(dataset, n_items)
        changes: dict[str, Any] = {"model": self.model, "config": config.model_dump()}
        if self.federated is not None:
            settings = self._settings(self.federated, config, n_items, n_clients)
            said = None
            if isinstance(settings, ProtectedSettings):
                said = promise(settings.epsilon, settings.delta or DEFAULT_DELTA)
            warning = gives_away(self.method, promised=said) or ""
            changes |= {"program": settings, "notes": {"gives_away": warning, **self.notes}}
        return self.model_copy(update=changes)

    def recommender(self) -> Recommender:
        """Return the model of a resolved spec, not fitted yet."""
        kind = models.MODELS[self.model]
        model: Recommender = kind(**self.config)
        return model

    def _config(self, dataset: str, n_items: int) -> Config:
        """Return the settings of the model: chosen, of the preset, published, or its defaults.

        A rank that was not chosen is limited to the number of items. The low-pass filter of a
        low-rank program uses the leading vectors, as many as the model uses with other programs
        (S_p in the paper's diagram).
        """
        self._check_names()
        kind, program, given = models.MODELS[self.model], self.federated, self.program.given()
        config = kind.published.get(dataset, kind.config_type())
        values = config.model_dump()
        low_rank = program is not None and program.low_rank
        if program is not None and program.usual_model == self.model:
            values |= program.preset_models.get(self.preset, {})
            preset = program.presets.get(self.preset, {})
            values |= {name: preset[name] for name in ("rank",) if name in preset}
            low_rank = False  # The model uses all vectors, and requests exactly as many.
        if given.get("head") is not None:
            if "head" not in kind.config_type.model_fields:
                raise UsageError(f"{self.model} does not know a head of popular items")
            values["head"] = given["head"]
        made: Config = kind(**{**values, **self.config}).config
        usual, rank = made.low_pass_rank, given.get("rank")
        if not usual and rank and not low_rank:
            raise UsageError(f"{self.model} has no low-pass filter whose rank could be set")
        if not usual or "rank" in self.config:
            return made
        if rank is None:
            rank = min(usual, n_items)
        elif low_rank:
            rank = min(usual, rank)
        limited: Config = kind(**{**made.model_dump(), "rank": rank}).config
        return limited

    def _check_names(self) -> None:
        for what, chosen, known in (
            ("model", self.model, models.MODELS),
            ("preset", self.preset, presets()),
        ):
            if chosen not in known:
                raise UsageError(f"no {what} {chosen!r}; there are {', '.join(known)}")
        if self.federated is None and self.preset != PUBLISHED:
            raise UsageError(f"the preset {self.preset} does not go with {self.method}")

    def _settings(
        self, program: type[Program[Any]], config: Config, n_items: int, n_clients: int
    ) -> MethodSettings:
        """Return the program settings that compute this model's components with the clients."""
        if not computes(program, config):
            raise UsageError(f"{self.method} does not compute what {self.model} needs")
        given = self.program.given()
        rank = config.low_pass_rank
        if program.low_rank:
            rank = rank or min(DEFAULT_RANK, n_items)
        offered = {**config.needs, "rank": rank}
        head = program.settings_type.model_fields.get("head")
        if head is not None and head.default is not None and "head" not in given:
            offered["head"] = getattr(config, "head", None)
            if offered["head"] is None:
                raise UsageError(f"{self.method} needs a head: how many of the most popular items")
        if self.protected and self.aggregator == TWO_SERVERS:
            given |= {"clients": 2, "contributors": 1}  # Each server adds noise.
        elif self.protected:
            given |= {
                "clients": n_clients,
                "contributors": self.contributors(n_clients),
                "corrupt": self.corrupt(n_clients),
            }
        preset = None if self.preset == PUBLISHED else self.preset
        settings: MethodSettings = program.settings_from(given, offered, preset)
        return settings

    def in_one_round(self) -> Self:
        """Return the spec of a single round that begins with the basis of an earlier model.

        The preset's settings are meant for several rounds, which correct each other's rounding
        errors. A single round cannot, so it needs a ring that is wide enough. Its block is the old
        basis and some more columns, which four bits per entry would not keep apart.
        """
        chosen = self.federated.presets.get(self.preset, {}) if self.federated else {}
        bits = max(chosen.get("ring_bits", 0), USUAL_RING_BITS)
        usual = {"columns": None, "ring_bits": bits, "block_bits": 8}
        return self.changed(**(usual | self.program.given() | {"start": "basis"}))


class OneProcess(BaseModel):
    """Settings of a run whose clients are all in this process."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    runtime: Annotated[Literal["simulation", "in-process"], Option("NAME", _SIMULATION)] = (
        "simulation"
    )
    """simulation: all users in one matrix; in-process: client by client."""
    clients: Annotated[int | None, Option("N", _SIMULATION, "one client per user")] = Field(
        None, ge=1
    )
    """Number of silos."""
    most_items: Annotated[
        int | None, Option("N", _SIMULATION, "100 with two-server and a client per user, else all")
    ] = Field(None, ge=1)
    """Most items of a history that enter sums, chosen at random."""
    secret_noise: Annotated[bool, Option("", "Noise (method protected)")] = False
    """Draw noise that nobody can repeat, so that epsilon holds."""
    after: Annotated[Path | None, Option("MODEL", _SIMULATION)] = None
    """Saved model to go on from: sums of protected, basis of spectral."""
    drop_share: _Share = 0.0
    """Share of the clients that drop out before the first sum (secure aggregation only)."""

    def sums_by(self, spec: RunSpec) -> bool:
        """Return True if the aggregator of a run matters in this process."""
        return self.runtime == "in-process" or spec.aggregator == TWO_SERVERS

    def limit_of(self, spec: RunSpec) -> int | None:
        """Return the most items of a history that enter sums; None: all."""
        one_user_each = spec.aggregator == TWO_SERVERS and self.clients is None
        return self.most_items or (MOST_ITEMS if one_user_each else None)

    def noise_seed(self, seed: int) -> int | None:
        """Return the seed of the clients' noise; None for noise that nobody can repeat."""
        return None if self.secret_noise else seed


def computes(program: type[Program[Any]], config: Config) -> bool:
    """Return True if the program has all settings the model needs, and none that would alter it."""
    settings = program.settings_type.model_fields.keys()
    return config.needs.keys() <= settings and program.only_for_models_with <= config.needs.keys()


def vector_shape(planned: PlannedSum) -> VectorShape:
    """Return the shape of a planned sum for the set-up exchange.

    The encoding proves the bound of the sum before a client answers; set-up only needs the sum to
    stay inside the ring.
    """
    shape = planned.shape
    most = 2 ** (shape.ring_bits - shape.signed) - 1
    if most < 1:
        raise OverflowRefused(f"a signed sum of {planned.name} does not fit into one bit")
    return VectorShape(shape.length, shape.ring_bits, most, shape.signed, bounds_sum=True)
