"""What client and server must have in common before a run begins."""

from __future__ import annotations

from privirec.data.catalogue import Catalogue
from privirec.runtime.network.messages import Hello
from privirec.runtime.network.refusals import Code, Refusal
from privirec.runtime.network.run_plan import same_version
from privirec.secagg.keys import Roster
from privirec.version import __version__


def check_common(told: Hello, client: int, catalogue: Catalogue, roster: Roster) -> None:
    """Refuse to begin with a server that runs another version, or knows other items or clients."""
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
