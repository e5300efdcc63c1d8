"""Audit of a release: runs the registered attacks on it and grades their results."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from privirec import threads as threading
from privirec.app.fit import EVERYTHING
from privirec.app.real_clients import through_clients
from privirec.app.transcript import is_record, opened_by, recorded
from privirec.data.interactions import Dataset, Interactions
from privirec.data.text import read_bytes
from privirec.errors import DataError, UsageError
from privirec.federated.contributions import Contribution, Histories, PlannedSum
from privirec.federated.contributions.noisy import NormedSum
from privirec.federated.programs import (
    DEFAULT_RANK,
    PROGRAMS,
    Program,
    ProgramSettings,
    program_of,
)
from privirec.models import artifact
from privirec.privacy.attacks import ATTACKS, Found
from privirec.privacy.attacks.grading import graded
from privirec.privacy.ledger import Ledger
from privirec.privacy.releases import HeardSum, Release, ReleasedFilters, ReleasedSum
from privirec.progress import QUIET, Phases
from privirec.runtime.execute import Runtime
from privirec.runtime.local.client import split_as_dealt, summed_stream
from privirec.runtime.spec import DROP_SHARE_ON_ONE_MACHINE, Assumptions
from privirec.version import __version__


class AskedAgain:
    """The people of a data set, in a form that can be asked again (`privacy.releases.Federation`).

    The amount of noise is what the promise counts on: that of the clients that neither drop out nor
    collude with the server. `noise=False` leaves the noise out although the asks state it. An audit
    must be able to detect this.
    """

    def __init__(
        self, train: Interactions, settings: ProgramSettings, seed: int = 0, *, noise: bool = True
    ) -> None:
        self._train = train
        self._settings = settings
        self._seed = seed
        self._noise = noise

    @property
    def people(self) -> Interactions:
        return self._train

    @property
    def promise(self) -> tuple[float, float, float | None] | None:
        described = self._program(self._train.n_users).describe()
        if described.get("epsilon") is None:
            return None
        return described["epsilon"], described["delta"], described["epsilon_replacing"]

    def planned(self) -> list[PlannedSum]:
        return self._program(self._train.n_users).expected_sums()

    def run(self, people: Interactions, number: int, sums: int | None = None) -> Release:
        program = self._program(people.n_users)
        opened = opened_by(program, self._runtime(people, number), sums)
        return Release(program.name, tuple(opened), noise_left_out=not self._noise)

    def ask(
        self, asks: Sequence[Contribution], number: int, people: Interactions | None = None
    ) -> Release:
        runtime = self._runtime(self._train if people is None else people, number)
        opened = [ReleasedSum(ask, runtime.sum(ask, Ledger())) for ask in asks]
        return Release(self._settings.method, tuple(opened), noise_left_out=not self._noise)

    def exact(self, ask: Contribution, people: Interactions) -> Any:
        return ask.total(Histories(people.matrix), [])

    def through_clients(
        self, asks: Sequence[NormedSum], people: Interactions, number: int
    ) -> list[HeardSum]:
        return through_clients(asks, people, self._seed * _RUNS_A_SEED + number, noise=self._noise)

    def _program(self, n_users: int) -> Program[Any]:
        return program_of(self._settings, n_users, self._train.n_items)

    def _runtime(self, people: Interactions, number: int) -> Runtime:
        seed = self._seed * _RUNS_A_SEED + number
        held_out = self._program(people.n_users).held_out
        histories = split_as_dealt(Histories(people.matrix), held_out, None, seed)
        if not self._noise:
            return _Noiseless(histories)
        return _WithNoiseOf(histories, seed)


_RUNS_A_SEED = 1_000_000


class _Noiseless:
    """Runtime that leaves out the noise of the asks."""

    def __init__(self, histories: Histories) -> None:
        self._histories = histories

    @property
    def clients(self) -> int:
        return self._histories.n_users

    def sum(self, ask: Contribution, ledger: Ledger) -> Any:
        return ask.total(self._histories, [])


class _WithNoiseOf(_Noiseless):
    """Runtime with the noise of as many clients as the promise counts on, whoever the people
    are."""

    def __init__(self, histories: Histories, seed: int) -> None:
        super().__init__(histories)
        self._seed = seed
        self._asked = 0

    def sum(self, ask: Contribution, ledger: Ledger) -> Any:
        self._asked += 1
        people = self._histories.n_users
        sources = int(getattr(ask, "contributors", people))
        noise = summed_stream(people, sources, self._seed, self._asked, ask.name)
        return ask.total(self._histories, [noise])


def release_of(
    name: str,
    dataset: Dataset,
    given: Mapping[str, Any] | None = None,
    *,
    preset: str | None = None,
    seed: int = 0,
    noise: bool = True,
) -> Release:
    """Return the release of a program, of a saved model, or of a recorded run.

    `name` is the name of a program, which is then run; the folder of a saved model; or the folder
    of a network run that a server keeps. `given` are settings of the program.

    If no rank is given, a program with a low-pass filter beside its item-item matrix runs without
    that filter.
    """
    if name in PROGRAMS:
        train = dataset.train
        kind = PROGRAMS[name]
        clients = train.n_users
        assumed = Assumptions(drop_share=DROP_SHARE_ON_ONE_MACHINE)
        offered = {
            "rank": min(DEFAULT_RANK, train.n_items) if kind.low_rank else 0,
            "seed": seed,
            "clients": clients,
            "contributors": assumed.contributors(clients),
            "corrupt": assumed.corrupt(clients),
        }
        settings = kind.settings_from(given or {}, offered, preset)
        federation = AskedAgain(train, settings, seed, noise=noise)
        release = federation.run(train, 0)
        return replace(release, federation=federation)
    check_release(name, given, preset=preset, noise=noise)
    folder = Path(name)
    return recorded(folder, dataset) if is_record(folder) else _saved(folder, dataset)


def check_release(
    name: str,
    given: Mapping[str, Any] | None = None,
    *,
    preset: str | None = None,
    noise: bool = True,
) -> None:
    """Raise UsageError for what `release_of` would refuse, as far as this needs no data."""
    if name in PROGRAMS:
        return
    if not Path(name).is_dir():
        known = ", ".join(PROGRAMS)
        raise UsageError(
            f"no release {name!r}: name a program ({known}), a saved model's folder, or the folder "
            "of a run that a server keeps"
        )
    if given or preset:
        raise UsageError(f"{name} is saved: its settings cannot be chosen any more")
    if not noise:
        raise UsageError(f"{name} is saved: its noise cannot be switched off any more")
    if not is_record(Path(name)):
        artifact.read_manifest(Path(name))


def _saved(folder: Path, dataset: Dataset) -> Release:
    saved = artifact.read(folder)
    if saved.components.is_weighted:
        raise UsageError(
            f"{folder}: fitted on weights, and the attacks here read counts: if they found "
            "nothing, that would say nothing"
        )
    manifest, train = saved.manifest, dataset.train
    theirs = [str(one) for one in saved.item_ids.tolist()]
    if theirs != [str(one) for one in train.item_ids.tolist()]:
        raise UsageError(f"{folder}: a model of other items than {dataset.name}")
    run = manifest.get("run")
    people = run.get("users") if isinstance(run, dict) else None
    if people not in (None, train.n_users):
        raise UsageError(f"{folder}: a model of {people} people, not of those of {dataset.name}")
    rows = manifest.get("ledger")
    ledger = tuple(row for row in rows if isinstance(row, dict)) if isinstance(rows, list) else ()
    settings = {"model": manifest.get("model"), **dict(manifest.get("config") or {})}
    filters = ReleasedFilters(saved.components, ledger, saved.derived, settings)
    return Release(str(folder), filters=filters)


def as_fitted(dataset: Dataset, release: str) -> Dataset:
    """Return the data set, with all interactions in train if a saved model was fitted on them."""
    folder = Path(release)
    if release in PROGRAMS or not (folder / artifact.MANIFEST).is_file():
        return dataset
    run = artifact.read_manifest(folder)[1].get("run")
    if not isinstance(run, dict) or run.get("fitted_on") != EVERYTHING:
        return dataset
    return Dataset(dataset.name, dataset.together(), dataset.test)


@dataclass(frozen=True)
class Audited:
    """Result of one attack: its row, and its findings for pictures."""

    row: dict[str, Any]
    found: Found


def audit(
    dataset: Dataset,
    release: str,
    given: Mapping[str, Any] | None = None,
    *,
    attacks: Sequence[str] | None = None,
    preset: str | None = None,
    seed: int = 0,
    noise: bool = True,
    threads: int | None = None,
    phases: Phases = QUIET,
) -> list[Audited]:
    """Run the attacks that apply to a release, and return their results.

    If `attacks` is None, all registered attacks are considered. The true histories are used only to
    grade the results.
    """
    chosen = list(ATTACKS) if attacks is None else list(attacks)
    for name in chosen:
        if name not in ATTACKS:
            raise UsageError(f"no attack {name!r}; there are {', '.join(ATTACKS)}")
    with threading.limit(threads):
        phases(f"what {release} releases")(0, 1)
        dataset = as_fitted(dataset, release)
        held = release_of(release, dataset, given, preset=preset, seed=seed, noise=noise)
        promise = held.federation.promise if held.federation else None
        about = {
            "dataset": dataset.name,
            "release": held.source,
            "preset": preset,
            **dict(
                zip(("epsilon", "delta", "epsilon_replacing"), promise or [None] * 3, strict=True)
            ),
            "noise": ("on" if noise else "off") if promise else None,
            "seed": seed,
        }
        return [
            _attacked(name, held, dataset, about, phases)
            for name in chosen
            if ATTACKS[name].applies_to(held)
        ]


def _attacked(
    name: str, release: Release, dataset: Dataset, about: Mapping[str, Any], phases: Phases
) -> Audited:
    wall, cpu = time.perf_counter(), time.process_time()
    found = ATTACKS[name].run(release, phases(name))
    seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
    row = {
        **about,
        "attack": name,
        **graded(found, dataset.train),
        **found.facts,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "version": __version__,
    }
    return Audited(row, found)


def is_refuted(row: Mapping[str, Any]) -> bool:
    """Return True if a measured lower bound on epsilon is above the promised one."""
    return any(
        row.get(f"promised_epsilon{which}") is not None
        and row[f"empirical_epsilon{which}"] > row[f"promised_epsilon{which}"]
        for which in ("", "_replacing")
    )


def read_rows(path: Path, dataset: str) -> list[dict[str, Any]]:
    """Return the rows on a data set that `privirec audit --json` wrote."""
    found = []
    for number, line in enumerate(read_bytes(path).splitlines(), 1):
        try:
            row = json.loads(line)
            if row["attack"] not in ATTACKS:
                raise ValueError
            theirs = (row["dataset"], row["release"])
        except (ValueError, KeyError, TypeError):
            raise DataError(f"{path}:{number}: not a row of audit") from None
        if theirs[0] != dataset:
            raise UsageError(f"{path}: an audit of {theirs[0]}, not of {dataset}")
        found.append(row)
    return found


def unmet_needs() -> str:
    """Return a list, in words, of the attacks and what each of them needs."""
    return "; ".join(f"{name} needs {attack.needs}" for name, attack in ATTACKS.items())
