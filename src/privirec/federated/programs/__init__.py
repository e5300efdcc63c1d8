"""Programs that run with the clients.

Each program has its own file and an entry in `PROGRAMS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from privirec.federated.programs.base import (
    Broadcast,
    CohortSize,
    Planned,
    Program,
    Step,
    Steps,
    keep_to,
)
from privirec.federated.programs.head_gram import HeadGram, HeadGramSettings
from privirec.federated.programs.power import DEFAULT_RANK, DEFAULT_ROUNDS
from privirec.federated.programs.privirec import Privirec, PrivirecSettings
from privirec.federated.programs.privirec_k import PrivirecK, PrivirecKSettings
from privirec.federated.programs.protected import Protected, ProtectedSettings
from privirec.federated.programs.spectral import SpectralProgram, SpectralSettings
from privirec.federated.programs.spectral_validation import (
    SpectralValidation,
    SpectralValidationSettings,
)
from privirec.federated.settings import MethodSettings, ProgramSettings, validated
from privirec.registry import Registry

PROGRAMS: Registry[type[Program[Any]]] = Registry(
    *("programs", "method"),
    *(Privirec, PrivirecK, HeadGram, Protected, SpectralProgram, SpectralValidation),
)
DEFAULT_PROGRAM = Protected.name
"""Default program of real federations."""


def program_of(settings: MethodSettings, n_users: int, n_items: int) -> Program[Any]:
    """Return the program for these settings, after checking that it can run."""
    return PROGRAMS.named(settings.method)(settings, n_users, n_items)


def settings_of(record: Mapping[str, Any]) -> ProgramSettings:
    """Return settings from plain values; `method` names the program that they belong to."""
    return validated(PROGRAMS.named(str(record.get("method"))).settings_type, record)


def preset_names() -> list[str]:
    """Return the sorted names of the presets of all programs."""
    return sorted({name for program in PROGRAMS.values() for name in program.presets})
