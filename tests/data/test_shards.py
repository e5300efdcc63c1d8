"""Tests of shards: equal to data in memory, written atomically, refused if damaged."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privirec.data import Interactions, load_dataset, statistics
from privirec.data.datasets import sharded_statistics
from privirec.data.shards import ShardedDataset, is_sharded, write_shards
from privirec.data.splits import split
from privirec.data.synthetic import Size, SyntheticBlocks, make_shards, synthetic
from privirec.errors import DataError, UsageError

NAME = "synthetic:90x40"


@pytest.fixture
def made(tmp_path: Path) -> ShardedDataset:
    return make_shards(NAME, tmp_path / "shards", users_per_shard=40)


def in_shards(whole: Interactions, folder: Path, users: int, seed: int = 0) -> ShardedDataset:
    """Write the rows of a matrix as shards of `users` users each."""
    n_shards = -(-whole.n_users // users)
    return write_shards(
        folder,
        "split",
        whole.item_ids,
        n_shards,
        lambda number: whole.rows(number * users, (number + 1) * users),
        made_from={},
        n_items=whole.n_items,
        seed=seed,
    )


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 9), st.integers(1, 12))
def test_shards_are_the_split_of_everything(
    tmp_path_factory: pytest.TempPathFactory, seed: int, users: int, items: int, per_shard: int
) -> None:
    rng = np.random.default_rng(seed)
    ids = np.sort(rng.choice(1000, users, replace=False))
    if seed % 2:
        ids = np.sort(np.array([f"user {number}" for number in ids]))
    whole = Interactions.from_matrix(rng.random((users, items)) < 0.6, ids)
    together = split(whole, test=0.2, seed=seed)
    shards = in_shards(whole, tmp_path_factory.mktemp("s") / "shards", per_shard, seed)
    found = shards.at_once()
    for part in ("train", "test"):
        one, other = getattr(found, part), getattr(together, part)
        np.testing.assert_array_equal(one.matrix.toarray(), other.matrix.toarray())
        np.testing.assert_array_equal(one.user_ids, other.user_ids)
        assert one.fingerprint() == other.fingerprint()
    assert shards.fingerprint == together.train.fingerprint()


def test_a_folder_of_shards_is_a_data_set(made: ShardedDataset) -> None:
    assert (len(made), made.n_users, made.n_items) == (3, 90, 40)
    loaded = load_dataset(made.folder)
    assert loaded.train.fingerprint() == made.fingerprint
    assert sharded_statistics(made) == statistics(loaded)


def test_blocks_depend_on_nothing_but_their_number(tmp_path: Path) -> None:
    size = Size(90, 40, 5.0, 2)
    blocks, again = SyntheticBlocks(size, 1, 40), SyntheticBlocks(size, 1, 40)
    last = again.block(2)
    np.testing.assert_array_equal(last.user_ids, np.arange(80, 90))
    assert last.fingerprint() == blocks.block(2).fingerprint()
    assert last.fingerprint() != SyntheticBlocks(size, 2, 40).block(2).fingerprint()
    assert len(blocks) == 3


def test_blocks_have_the_tail_of_what_is_made_at_once(tmp_path: Path) -> None:
    made = statistics(make_shards("synthetic:demo", tmp_path / "s", users_per_shard=300).at_once())
    whole = statistics(synthetic("synthetic:demo"))
    assert made.interactions == pytest.approx(whole.interactions, rel=0.05)
    assert made.median_user == pytest.approx(whole.median_user, abs=1)
    assert made.smallest_user == whole.smallest_user


class Interrupted(Exception):
    pass


def test_an_interrupted_writing_goes_on(
    tmp_path: Path, made: ShardedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, make = tmp_path / "again", SyntheticBlocks.block
    asked: list[int] = []

    def block(self: SyntheticBlocks, number: int) -> Interactions:
        asked.append(number)
        if asked == [0, 1]:
            raise Interrupted
        return make(self, number)

    monkeypatch.setattr(SyntheticBlocks, "block", block)
    with pytest.raises(Interrupted):
        make_shards(NAME, folder, users_per_shard=40)
    assert is_sharded(folder)
    with pytest.raises(DataError, match="not finished"):
        load_dataset(folder)
    with pytest.raises(UsageError, match="something else"):
        make_shards(NAME, folder, seed=3, users_per_shard=40)
    assert make_shards(NAME, folder, users_per_shard=40).fingerprint == made.fingerprint
    assert asked == [0, 1, 1, 2]
    make_shards(NAME, folder, users_per_shard=40)  # all shards exist: nothing is written
    assert asked == [0, 1, 1, 2]
    assert sorted(path.name for path in folder.iterdir()) == [
        *(".lock", "00000", "00001", "00002", "manifest.json")
    ]


def test_a_shard_is_there_whole_or_not_at_all(
    tmp_path: Path, made: ShardedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Crash at each rename in turn, and check that every existing shard is complete."""
    replace, left, folder = os.replace, 0, tmp_path / "again"

    def crash(source: Path, target: Path) -> None:
        nonlocal left
        if not left:
            raise Interrupted
        left -= 1
        replace(source, target)

    monkeypatch.setattr(os, "replace", crash)
    for crashes in range(30):
        left = crashes
        try:
            made_again = make_shards(NAME, folder, users_per_shard=40)
        except Interrupted:
            for shard in folder.glob("[0-9]*"):
                assert (shard / "counts.json").is_file()
        else:
            break
    assert crashes > 3
    assert made_again.fingerprint == made.fingerprint


def test_one_process_at_a_time_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, refused = SyntheticBlocks.block, []

    def block(self: SyntheticBlocks, number: int) -> Interactions:
        with pytest.raises(DataError, match="another process is at work there"):
            make_shards(NAME, tmp_path / "s", users_per_shard=40)
        refused.append(number)
        return make(self, number)

    monkeypatch.setattr(SyntheticBlocks, "block", block)
    assert make_shards(NAME, tmp_path / "s", users_per_shard=40).n_users == 90
    assert refused == [0, 1, 2]


def test_a_folder_with_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("here")
    with pytest.raises(UsageError, match="holds something else"):
        make_shards(NAME, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_damage_is_noticed(made: ShardedDataset) -> None:
    path = made.folder / "00001" / "train-indices.npy"
    content = bytearray(path.read_bytes())
    content[-4] ^= 1
    path.write_bytes(bytes(content))
    ShardedDataset(made.folder).shard(0)
    with pytest.raises(DataError, match="00001: not the shard that the manifest names"):
        ShardedDataset(made.folder).shard(1)
    (made.folder / "00002" / "test-indptr.npy").unlink()
    with pytest.raises(DataError, match="00002: not the shard"):
        ShardedDataset(made.folder).shard(2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "privirec/shards/9"}, "format 'privirec/shards/9'"),
        ({"shards": [{"users": 3}]}, "not a manifest of shards"),
        ({"items": 1}, "refers to items outside the catalogue"),
    ],
)
def test_manifests_that_lie(made: ShardedDataset, change: dict[str, object], message: str) -> None:
    path = made.folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(DataError, match=message):
        ShardedDataset(made.folder).shard(0)


def test_other_folders_with_manifests_are_no_shards(tmp_path: Path) -> None:
    for content in ('{"format": 3}', "[]", "none", '{"model": "gf-cf"}'):
        (tmp_path / "manifest.json").write_text(content)
        assert not is_sharded(tmp_path)
        with pytest.raises(DataError, match=r"holds no train.txt"):
            load_dataset(tmp_path)


def test_a_sample_is_of_users_with_test_items(made: ShardedDataset) -> None:
    whole = made.at_once()
    sample = made.sample(20, seed=1)
    assert sample.train.n_users == len(set(sample.train.user_ids.tolist())) == 20
    for row, user in enumerate(sample.train.user_ids.tolist()):
        for part in ("train", "test"):
            one, other = getattr(sample, part).matrix, getattr(whole, part).matrix
            np.testing.assert_array_equal(one[[row]].toarray(), other[[user]].toarray())
    assert (sample.test.user_degrees > 0).all()
    assert made.sample(20, seed=1).test.fingerprint() == sample.test.fingerprint()
    everybody = made.sample(10**6)
    assert everybody.train.n_users == int(np.count_nonzero(whole.test.user_degrees))


def test_what_does_not_fit_is_not_read_at_once(
    made: ShardedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privirec.data.shards.LARGEST_AT_ONCE", 10)
    with pytest.raises(DataError, match="take shards one by one"):
        load_dataset(made.folder)
    with pytest.raises(UsageError, match="privirec data make synthetic:ten-million FOLDER"):
        load_dataset("synthetic:ten-million")
