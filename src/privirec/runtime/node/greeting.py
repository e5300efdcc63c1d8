"""Checks that client and server agree before a run begins and while it lasts."""

from __future__ import annotations

from privirec.data.catalogue import Catalogue
from privirec.runtime.messages import Hello
from privirec.runtime.node.run_state import ClientRun, Participation
from privirec.runtime.refusals import Code, Refusal
from privirec.runtime.run_plan import same_version
from privirec.secagg.keys import Roster
from privirec.version import __version__


def check_common(told: Hello, client: int, catalogue: Catalogue, roster: Roster) -> None:
    """Refuse to begin with a server that has another version, catalogue or roster."""
    if not same_version(told.version):
        raise Refusal(
            Code.OTHER_VERSION,
            f"the server runs version {told.version}, client {client} version "
            f"{__version__}: install the same",
        )
    if told.catalogue != catalogue.fingerprint:
        raise Refusal(
            Code.OTHER_CATALOGUE,
            f"client {client} has another catalogue "
            f"({len(catalogue)} items, {catalogue.fingerprint[:16]}) than the "
            f"server ({told.items} items, {told.catalogue[:16]})",
        )
    if told.roster != roster.digest.hex():
        raise Refusal(
            Code.OTHER_ROSTER,
            f"client {client} has another roster ({roster.digest.hex()[:16]}) than "
            f"the server ({told.roster[:16]}): fetch the operator's",
        )


def check_taking_part(state: ClientRun, client: int, roster: Roster) -> None:
    """Refuse to go on in a run that this client has left, or in which it cannot stay."""
    if state.part is not Participation.TAKING:
        raise Refusal(Code.HAS_LEFT, f"has left this run: {state.why_left}")
    if state.roster != roster.digest.hex():
        # The pledge names clients by their places in the roster, so with another roster it would be
        # a different pledge.
        raise Refusal(
            Code.OTHER_ROSTER,
            f"client {client} has another roster ({roster.digest.hex()[:16]}) than when this run "
            f"began ({state.roster[:16]}), so it leaves and takes part in the next",
            final=True,
        )
