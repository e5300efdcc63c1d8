"""Tests of recommendations and explanations on the device."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import privirec.device
from privirec.data import Interactions
from privirec.device import Device, Installed, Store, load_model
from privirec.device.recommend import Cause, Recommendation
from privirec.errors import DataError, DataWarning, UsageError
from privirec.filters.components import Components, centralized
from privirec.filters.operators import LowRankOperator
from privirec.models import GFCF, MODELS, Popularity, Recommender, TurboCF


@pytest.fixture
def store(tmp_path: Path, named: Interactions) -> Iterator[Store]:
    with Store(tmp_path / "silo.db", create=True) as opened:
        opened.add_interactions(named)
        yield opened


@pytest.fixture
def device(store: Store, model: Recommender) -> Device:
    return Device(store, model)


def history(interactions: Interactions, user: int) -> list[str]:
    return interactions.item_ids[interactions.matrix[[user]].indices].tolist()


def test_equals_the_model(device: Device, named: Interactions, model: Recommender) -> None:
    for user in (0, 7, 100):
        items, scores = model.recommend(f"user-{user:04d}", named, N=8)
        found = device.recommend(f"user-{user:04d}", 8)
        assert [each.item for each in found] == items.tolist()
        assert [each.score for each in found] == scores.tolist()
        assert not {each.item for each in found} & set(history(named, user))


def test_seen_items_on_request(device: Device, named: Interactions, model: Recommender) -> None:
    found = device.recommend("user-0003", named.n_items, include_seen=True)
    assert len(found) == named.n_items
    unseen = device.recommend("user-0003", named.n_items)
    assert {each.item for each in found} - {each.item for each in unseen} == set(history(named, 3))


def test_a_cold_user_with_three_items_works_at_once(device: Device, store: Store) -> None:
    items = ["item-0001", "item-0005", "item-0009"]
    store.add(("newcomer", item) for item in items)
    found = device.recommend("newcomer", 5, explain=True)
    assert len(found) == 5
    assert found[0].score > 0
    assert {cause.item for cause in found[0].because} == set(items)
    store.forget_items("newcomer", items[:2])
    after = device.recommend("newcomer", 5, explain=True)
    assert [cause.item for cause in after[0].because] == items[2:]
    similar = device.similar(items[2], 5)
    assert [each.item for each in after] == [each.item for each in similar]


def all_models(train: Interactions) -> list[Recommender]:
    """Return every model on the exact matrix, Turbo-CF with all filters, and GF-CF on low rank."""
    fitted: list[Recommender] = []
    for kind in MODELS.values():
        if kind is Popularity:  # its scores do not depend on the history
            continue
        has_rank = "rank" in kind.config_type.model_fields
        fitted.append(Recommender.fit(kind(rank=12) if has_rank else kind(), train))
    fitted += [TurboCF(s=0.7, filter=number).fit(train) for number in (1, 2, 3)]
    exact = centralized(train, rank=12)
    assert exact.basis is not None
    operator = LowRankOperator(exact.basis, np.linspace(1, 0.2, 12))
    low_rank = Components(exact.item_degrees, operator, exact.basis)
    return [*fitted, GFCF(rank=12).use(low_rank, train.item_ids)]


def test_contributions_add_up_to_the_score_for_every_model(
    store: Store, named: Interactions
) -> None:
    for model in all_models(named):
        device = Device(store, model)
        for user in ("user-0001", "user-0150"):
            found = device.recommend(user, 10, explain=True)
            assert len(found) == 10
            for each in found:
                parts = [cause.contribution for cause in each.because]
                assert parts == sorted(parts, reverse=True)
                assert {cause.item for cause in each.because} == set(store.items(user))
                scale = max(map(abs, parts))
                assert sum(parts) == pytest.approx(each.score, abs=1e-4 * scale, rel=1e-4)
                assert sum(share for _, share in each.strongest(3)) <= 1 + 1e-9


@given(st.lists(st.integers(0, 99), min_size=1, max_size=99, unique=True), st.data())
def test_contributions_of_any_history(
    store: Store, model: Recommender, items: list[int], data: st.DataObject
) -> None:
    device = Device(store, model)
    columns = np.array(data.draw(st.lists(st.integers(0, 99), min_size=1, max_size=5)))
    parts = device.model.contributions(np.array(sorted(items)), columns)
    assert parts.shape == (len(items), len(columns))
    whole = np.zeros((1, len(device.catalogue)), np.float32)
    whole[0, items] = 1
    expected = model.score(Interactions.from_matrix(whole).matrix)[0, columns]
    np.testing.assert_allclose(parts.sum(axis=0), expected, rtol=1e-3, atol=1e-4)


@given(st.lists(st.floats(-10, 10), max_size=12), st.integers(1, 12))
def test_no_share_of_what_speaks_for_an_item_is_over_all_of_it(parts: list[float], n: int) -> None:
    causes = [Cause(str(item), None, part) for item, part in enumerate(sorted(parts)[::-1])]
    shares = [share for _, share in Recommendation("x", None, sum(parts), (*causes,)).strongest(n)]
    assert all(0 <= share <= 1 for share in shares)
    assert sum(shares) <= 1 + 1e-9
    assert len(shares) == min(n, sum(part > 0 for part in parts))


def test_titles_and_ids(device: Device, store: Store) -> None:
    store.set_titles({"item-0002": "Two"})
    by_item = {each.item: each.title for each in device.recommend("user-0000", 300, explain=True)}
    assert {title for item, title in by_item.items() if item != "item-0002"} == {None}
    store.add([("reader", "item-0002")])
    (cause,) = device.recommend("reader", 1, explain=True)[0].because
    assert (cause.item, cause.title) == ("item-0002", "Two")


def test_numbers_as_ids(tmp_path: Path, train: Interactions) -> None:
    model = GFCF(rank=8).fit(train)
    with Store(tmp_path / "s.db", create=True) as store:
        store.add_interactions(train.rows(0, 1))
        items, _ = model.recommend(0, train.matrix[[0]], N=5)
        found = Device(store, model).recommend(n=5)
        assert [int(each.item) for each in found] == items.tolist()


def test_who_is_meant(tmp_path: Path, device: Device, model: Recommender) -> None:
    with pytest.raises(UsageError, match="users, so say which"):
        device.recommend()
    with pytest.raises(DataError, match="no user nobody"):
        device.recommend("nobody")
    with pytest.raises(DataError, match="knows no item x"):
        device.similar("x")
    with Store(tmp_path / "mine.db", create=True) as store:
        mine = Device(store, model)
        with pytest.raises(DataError, match="an empty history"):
            mine.recommend()
        store.add([("me", "unheard-of"), ("me", "unknown")])
        with pytest.raises(DataError, match="none of the 2 items of user me"):
            mine.recommend()
        store.add([("me", "item-0001")])
        with pytest.warns(DataWarning, match="does not know 2 of the 3 items of user me"):
            assert mine.recommend(n=3) == mine.recommend("me", 3)


def test_from_installed_artifacts(
    saved: Path, store: Store, device: Device, tmp_path: Path
) -> None:
    Installed(tmp_path / "models").install(saved)
    for folder in (saved, tmp_path / "models"):
        again = Device(store, load_model(folder))
        assert again.recommend("user-0004", explain=True) == device.recommend(
            "user-0004", explain=True
        )


OFFLINE = """
import sys
def watch(event, arguments):
    if event.startswith("socket.") or event in ("urllib.Request", "http.client.connect"):
        raise SystemExit(f"network: {event} {arguments}")
sys.addaudithook(watch)
from privirec.device import Device, Store, load_model
with Store(sys.argv[1]) as store:
    found = Device(store, load_model(sys.argv[2])).recommend("user-0001", 3, explain=True)
print(*(each.item for each in found))
"""


def test_no_network(store: Store, saved: Path, device: Device) -> None:
    """Test that no socket is created, by this package or by anything it imports."""
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE, str(store.path), str(saved)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [each.item for each in device.recommend("user-0001", 3)]


def test_no_module_of_the_device_knows_a_network_or_a_runtime() -> None:
    allowed = {"compiled", "data", "device", "errors", "durable", "filters", "models"}
    (folder,) = privirec.device.__path__
    for file in Path(folder).glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            modules = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            for module in modules:
                top, *below = module.split(".")
                assert top not in {"socket", "ssl", "http", "requests", "flwr", "grpc"}
                assert module != "urllib.request"
                if top == "privirec":
                    assert below[0] in allowed, f"{file.name} imports {module}"
