"""Thresholds of the code, from the stated assumptions."""

from __future__ import annotations

from dataclasses import dataclass

from privirec.secagg.errors import ParametersInfeasible
from privirec.secagg.parameters import PPM, Parameters, Statement


@dataclass(frozen=True)
class Thresholds:
    """Numbers of pieces that reveal nothing and that open a mask, and quorum of confirmations."""

    clients: int
    """Number of clients that take part (m)."""
    private: int
    """Number of pieces that reveal nothing about a mask (T): the corrupt clients, at least 1."""
    needed: int
    """Number of pieces that open a sum of masks (U): the clients that are certain to remain."""

    @property
    def payload(self) -> int:
        """Number of mask elements per element of a piece (U - T)."""
        return self.needed - self.private

    @property
    def quorum(self) -> int:
        """Number of clients that must confirm a set of survivors before any client answers (Q).

        Any two sets with Q signers each have more than T signers in common. At least one of these
        is honest, and an honest client signs only one set.
        """
        return (self.clients + self.private) // 2 + 1

    def columns(self, elements: int) -> int:
        """Return the number of elements in a piece of a mask with `elements` elements."""
        return -(-elements // self.payload)


def thresholds(statement: Statement) -> Thresholds:
    """Return T, U and Q for the participants; raise ParametersInfeasible if none exist."""
    clients, dropped = statement.clients, statement.dropped
    if clients < 2:
        raise ParametersInfeasible(f"at least 2 clients are needed, not {clients}")
    if not 0 <= min(statement.corrupt_ppm, statement.dropped_ppm) <= PPM:
        raise ParametersInfeasible("corrupt and dropped shares must lie between 0 and 1")
    # Even if no client is corrupt, no single client may learn anything about another's mask.
    found = Thresholds(clients, max(1, statement.corrupt), clients - dropped)
    if found.payload < 1 or found.quorum > found.needed:
        raise ParametersInfeasible(
            f"{clients} clients are too few: with {found.private} corrupt and {dropped} dropped, "
            f"{found.quorum} of them must agree on who is in a sum and more than {found.private} "
            f"must open it, and only {max(0, found.needed)} are certain to be left"
        )
    return found


def graph_parameters(statement: Statement) -> Parameters:
    """Return degree and threshold as other protocols do; every client holds pieces of all masks."""
    found = thresholds(statement)
    return Parameters(found.clients - 1, found.needed)
