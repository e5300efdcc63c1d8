"""Secure aggregation of integer vectors modulo 2^b, without I/O (sans-IO).

`protocol(name)` returns a protocol with its client and server sessions. `LocalFederation` runs all
clients and the server in one process.
"""

from privirec.secagg.errors import ProtocolError
from privirec.secagg.keys import Identity, Roster
from privirec.secagg.local_federation import LocalFederation, OpenedSum, Traffic
from privirec.secagg.parameters import Parameters, ServerModel, Statement
from privirec.secagg.protocol import (
    Agreement,
    ClientPolicy,
    ClientSession,
    Guarantee,
    Phase,
    Protocol,
    Schedule,
    ServerSession,
    ServerSettings,
    Step,
)
from privirec.secagg.registry import TWO_SERVERS, aggregator_names, protocol, protocol_names
from privirec.secagg.ring import Ring, VectorShape
