"""Tests of the sums that the in-process runtime agrees on before any client answers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from privirec.data import load_dataset
from privirec.errors import FederationError, OverflowRefused
from privirec.federated.contributions import ItemDegrees, PlannedSum, PowerStep, SumShape
from privirec.privacy.ledger import Ledger
from privirec.runtime.local.client import clients_of
from privirec.runtime.local.secure import SecureInProcess
from privirec.runtime.spec import vector_shape


def test_a_sign_does_not_fit_into_a_ring_of_one_bit() -> None:
    with pytest.raises(OverflowRefused, match="one bit"):
        vector_shape(PlannedSum(PowerStep, SumShape(4, 1, signed=True)))
    assert vector_shape(PlannedSum(ItemDegrees, SumShape(4, 1, signed=False))).bound == 1


def test_a_sum_with_another_sign_than_agreed_is_refused() -> None:
    train = load_dataset("synthetic:small").train.rows(0, 8)
    ask = ItemDegrees(train.n_items, train.n_users)
    agreed = PlannedSum(ItemDegrees, replace(ask.shape, signed=True))
    runtime = SecureInProcess(clients_of(train), [agreed], "secagg")
    with pytest.raises(FederationError, match="another length, ring or sign"):
        runtime.sum(ask, Ledger())
