"""The sums that the in-process runtime agrees on before anybody answers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from privirec.runtime.plan import PlannedSum

from privirec.data import load_dataset
from privirec.errors import FederationError, OverflowRefused
from privirec.federated.contributions import ItemDegrees
from privirec.privacy.ledger import Ledger
from privirec.runtime.local.in_process import clients_of
from privirec.runtime.local.secure import SecureInProcess, shape_of


def test_a_sign_does_not_fit_into_a_ring_of_one_bit() -> None:
    with pytest.raises(OverflowRefused, match="one bit"):
        shape_of(PlannedSum("power-step", 4, 1, True, 0))
    assert shape_of(PlannedSum("item-degrees", 4, 1, False, 0)).bound == 1


def test_a_sum_with_another_sign_than_agreed_is_refused() -> None:
    train = load_dataset("synthetic:small").train.rows(0, 8)
    ask = ItemDegrees(train.n_items, train.n_users)
    agreed = PlannedSum(ask.name, ask.length, ask.encoding.width, False, 0)
    runtime = SecureInProcess(clients_of(train), [replace(agreed, signed=True)], "secagg")
    with pytest.raises(FederationError, match="agreed at set-up"):
        runtime.sum(ask, Ledger())
