"""Fixtures: a small model with item names, and a path for its artifact."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from privirec.data import Interactions
from privirec.data.synthetic import synthetic
from privirec.models import GFCF, Recommender


@pytest.fixture(scope="session")
def train() -> Interactions:
    return synthetic("synthetic:small").train


@pytest.fixture(scope="session")
def named(train: Interactions) -> Interactions:
    """Return the training histories with names instead of numbers."""
    items = np.array([f"item-{number:04d}" for number in range(train.n_items)])
    users = np.array([f"user-{number:04d}" for number in range(train.n_users)])
    return Interactions.from_matrix(train.matrix, users, items)


@pytest.fixture(scope="session")
def model(named: Interactions) -> Recommender:
    return GFCF(rank=16).fit(named)


@pytest.fixture
def saved(model: Recommender, tmp_path: Path) -> Path:
    return model.save(tmp_path / "artifact")
