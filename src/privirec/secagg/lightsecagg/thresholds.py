"""From a statement of trust to the three numbers of the code."""

from __future__ import annotations

from dataclasses import dataclass

from privirec.secagg.errors import ParametersInfeasible
from privirec.secagg.parameters import PPM, Parameters, Statement


@dataclass(frozen=True)
class Thresholds:
    """How many pieces of a mask say nothing, how many open it, how many clients must agree."""

    clients: int
    """Clients that take part (m)."""
    private: int
    """Pieces of a mask that say nothing of it (T): as many as there are corrupt clients."""
    needed: int
    """Pieces of a sum of masks that open it (U): as many clients as are certain to be left."""

    @property
    def payload(self) -> int:
        """Elements of a mask behind one element of each piece (U - T)."""
        return self.needed - self.private

    @property
    def quorum(self) -> int:
        """Clients that must have confirmed a set of survivors before anybody answers (Q).

        Two sets with so many signers each have more than T signers in common, one of them honest,
        and an honest client signs one set only.
        """
        return (self.clients + self.private) // 2 + 1

    def columns(self, elements: int) -> int:
        """Elements in a piece of a mask of so many elements."""
        return -(-elements // self.payload)


def thresholds(statement: Statement) -> Thresholds:
    """T, U and Q for the clients that take part; ParametersInfeasible where there are none."""
    clients, dropped = statement.clients, statement.dropped
    if clients < 2:
        raise ParametersInfeasible(f"{clients} clients cannot hide behind each other")
    if not 0 <= min(statement.corrupt_ppm, statement.dropped_ppm) <= PPM:
        raise ParametersInfeasible("corrupt and dropped shares lie between 0 and 1")
    # Even where nobody is corrupt, no single client shall learn anything of another's mask.
    found = Thresholds(clients, max(1, statement.corrupt), clients - dropped)
    if found.payload < 1 or found.quorum > found.needed:
        raise ParametersInfeasible(
            f"{clients} clients are too few: with {found.private} corrupt and {dropped} dropped, "
            f"{found.quorum} of them must agree on who is in a sum and more than {found.private} "
            f"must open it, and only {max(0, found.needed)} are certain to be left"
        )
    return found


def graph_parameters(statement: Statement) -> Parameters:
    """The same as other protocols state it: everybody holds a piece of everybody's mask."""
    found = thresholds(statement)
    return Parameters(found.clients - 1, found.needed)
