"""Tests that every recommender must pass: inherit from `ModelTests` and set the model."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray
from safetensors.numpy import load_file

from privirec.data import Dataset, Interactions
from privirec.errors import ArtifactError, DataWarning, UsageError
from privirec.evaluation import evaluate
from privirec.filters import (
    Components,
    LowRankOperator,
    Normalisation,
    SparseOperator,
    centralized,
)
from privirec.filters.operators import NotKept
from privirec.models import GFCF, Recommender, TurboCF, artifact


def checkerboard(n: int) -> sp.csr_array:
    """Return a board on which user u has every item of u's parity except item u, the expected
    answer."""
    board = np.fromfunction(lambda u, i: ((u + i) % 2 == 0) & (u != i), (n, n))
    return sp.csr_array(board.astype(np.float32))


def full_rank(components: Components) -> Components:
    """Return the same P~ in the form that PriviRec-k releases if it keeps every eigenvector."""
    dense = components.item_item.times(np.eye(components.n_items, dtype=np.float32))
    values, vectors = np.linalg.eigh(dense.astype(np.float64))
    basis = np.ascontiguousarray(vectors[:, ::-1], np.float32)
    operator = LowRankOperator(basis, np.clip(values[::-1], 0, None))
    return replace(components, item_item=operator)


class ModelTests:
    """Base class: subclass it, set `model`, and give settings that fit small catalogues."""

    pytestmark = pytest.mark.filterwarnings("ignore:.* histories have nothing that the model knows")

    empty_is_popular: ClassVar[bool] = False
    """True if popularity ranks the items for an empty history."""
    model: ClassVar[type[Recommender]]
    small_rank: ClassVar[dict[str, Any]] = {"rank": 1}
    """Settings that can be fitted to a catalogue of one item."""
    alike: ClassVar[NDArray[np.float64]] = np.full((9, 9), 1 / 9)
    """An item-item matrix that gives all items equal scores, to the last bit."""
    better: ClassVar[float] = 1.3
    """Minimum ratio of its NDCG to that of popularity."""

    def fit(self, user_items: Any, rank: int = 1) -> Recommender:
        settings = dict.fromkeys(self.small_rank, rank)
        return self.model(**settings).fit(user_items)

    # --- recommending -----------------------------------------------------------------------------

    def test_checkerboard(self) -> None:
        board = checkerboard(30)
        ids, scores = self.fit(board, rank=2).recommend(np.arange(30), board, N=1)
        np.testing.assert_array_equal(ids[:, 0], np.arange(30))
        assert ids.dtype == np.int64
        assert scores.dtype == np.float32

    def test_similar_items_are_of_the_same_colour(self) -> None:
        model = self.fit(checkerboard(20), rank=2)
        for item in (0, 7, 19):
            ids, scores = model.similar_items(item, N=5)
            assert set((ids - item) % 2) == {0}
            assert item not in ids
            assert (np.diff(scores) <= 0).all()
        for unknown in (-1, 20):
            with pytest.raises(UsageError, match=f"item {unknown} is not in a catalogue of 20"):
                model.similar_items(unknown)

    def test_beats_popularity(self, small: Dataset) -> None:
        class Popularity:
            def score(self, user_items: sp.csr_array) -> NDArray[np.float32]:
                degrees = small.train.item_degrees.astype(np.float32)
                return np.tile(degrees, (user_items.shape[0], 1))

        ours = evaluate(self.fit(small.train, rank=16), small)
        assert ours.ndcg > self.better * evaluate(Popularity(), small).ndcg

    def test_batch_equals_single(self, small: Dataset) -> None:
        histories = small.train.matrix
        model = self.fit(small.train, rank=8)
        users = np.arange(small.train.n_users)
        ids, scores = model.recommend(users, histories, N=12)
        assert ids.shape == scores.shape == (len(users), 12)
        for user in (0, 1, 63, 64, 127, 199):
            one_ids, one_scores = model.recommend(user, histories[[user]], N=12)
            assert one_ids.shape == one_scores.shape == (12,)
            np.testing.assert_array_equal(one_ids, ids[user])
            np.testing.assert_allclose(one_scores, scores[user], rtol=1e-5, atol=1e-6)

    def test_large_batches_are_cut_without_a_trace(
        self, small: Dataset, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        histories = small.train.matrix
        model = self.fit(small.train, rank=8)
        whole = model.recommend(np.arange(200), histories)
        monkeypatch.setattr("privirec.models.recommending.USERS_AT_ONCE", 7)
        cut = model.recommend(np.arange(200), histories)
        np.testing.assert_array_equal(whole[0], cut[0])
        np.testing.assert_allclose(whole[1], cut[1], rtol=1e-5, atol=1e-6)

    def test_histories_as_people_pass_them(self, holes: Interactions) -> None:
        """Test a row of a sparse array, counts instead of ones, stored zeros, entries in any
        order."""
        model = self.fit(holes)
        row = holes.matrix[[3]]
        expected, _ = model.recommend(3, row, N=5)
        items = row.indices[::-1].copy()
        untidy = sp.csr_array(
            (np.full(len(items), 4), items, np.array([0, len(items)])), shape=row.shape
        )
        zeros = sp.csr_array(
            (np.array([*row.data, 0.0]), np.array([*row.indices, 0]), [0, row.nnz + 1]),
            shape=row.shape,
        )
        assert 0 not in row.indices
        for same in (
            holes.matrix[3],
            row.toarray(),
            sp.csr_matrix(row),
            untidy,
            zeros,
            row.tocoo(),
        ):
            np.testing.assert_array_equal(model.recommend(3, same, N=5)[0], expected)

    def test_seen_items_are_left_out_unless_asked_for(self, small: Dataset) -> None:
        histories = small.train.matrix
        model = self.fit(small.train, rank=8)
        users = np.arange(small.train.n_users)
        ids, _ = model.recommend(users, histories, N=20)
        assert not histories.toarray()[users[:, None], ids].any()
        ids, scores = model.recommend(users, histories, N=20, filter_already_liked_items=False)
        assert histories.toarray()[users[:, None], ids].any()
        order = np.argsort(-model.score(histories), axis=1, kind="stable")[:, :20]
        np.testing.assert_array_equal(ids, order)
        assert (np.diff(scores, axis=1) <= 0).all()

    def test_all_ways_to_score_many_histories_agree(
        self, small: Dataset, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Test scoring one by one, in parts, and by sums of rows of the filter written out."""
        histories = small.train.matrix
        model = self.fit(small.train, rank=8)
        users = np.arange(small.train.n_users)
        directly = model._score(histories)
        size = float(np.abs(directly).max())
        monkeypatch.setattr("privirec.filters.parts.FEW", 0)
        model.ready_for(len(users), histories.nnz)
        assert model._rows is None
        in_parts = model.score(histories)
        np.testing.assert_allclose(in_parts, directly, atol=1e-5 * size)
        ids = model.recommend(users, histories, 20, filter_already_liked_items=False)[0]
        np.testing.assert_array_equal(ids, np.argsort(-in_parts, kind="stable")[:, :20])
        monkeypatch.setattr("privirec.models.base.row_sums_pay", lambda *_: True)
        model.ready_for(len(users), histories.nnz)
        assert model._rows is not None
        np.testing.assert_allclose(model.score(histories), directly, atol=1e-5 * size)
        again, _ = model.recommend(users, histories, 20, filter_already_liked_items=False)
        assert (again == ids).mean() > 0.99  # except for rounding where scores are equal

    def test_fewer_items_than_asked_for(self, holes: Interactions) -> None:
        model = self.fit(holes)
        ids, scores = model.recommend(np.arange(30), holes.matrix, N=40)
        unseen = holes.n_items - holes.user_degrees
        np.testing.assert_array_equal((ids >= 0).sum(axis=1), unseen)
        for user in range(30):
            assert set(ids[user, unseen[user] :]) == {-1}
            assert len(set(ids[user, : unseen[user]])) == unseen[user]
        np.testing.assert_array_equal(ids < 0, scores == -np.inf)

    def test_ties_go_to_the_lower_item(self) -> None:
        alike = SparseOperator(sp.csr_array(self.alike.astype(np.float32)))
        basis = np.zeros((9, 1), np.float32)
        model = self.model(**self.small_rank)
        normalisation = model.config.normalisation
        model.use(Components(np.ones(9, np.int64), alike, basis, normalisation=normalisation))
        ids, scores = model.recommend(0, sp.csr_array([[0, 1, 0, 0, 0, 1, 0, 0, 0]]), N=6)
        assert ids.tolist() == [0, 2, 3, 4, 6, 7]
        assert len(set(scores.tolist())) == 1

    def test_wrong_questions(self, holes: Interactions) -> None:
        model = self.fit(holes)
        with pytest.raises(UsageError, match="2 users but 3 histories"):
            model.recommend([0, 1], holes.matrix[:3])
        with pytest.raises(UsageError, match="histories over 5 items, filters over 17"):
            model.recommend(0, sp.csr_array((1, 5)))
        with pytest.raises(UsageError, match="N must be at least 1"):
            model.recommend(0, holes.matrix[:1], N=0)
        with pytest.raises(UsageError, match=f"{self.model.name} has not been fitted"):
            self.model().recommend(0, holes.matrix[:1])

    # --- empty input ------------------------------------------------------------------------------

    def test_items_without_users_and_users_without_items(self, holes: Interactions) -> None:
        model = self.fit(holes, rank=8)
        scores = model.score(holes.matrix)
        assert np.isfinite(scores).all()
        if self.empty_is_popular:
            assert (np.argsort(-scores[0]) == np.argsort(-holes.item_degrees)).all()
            return
        assert not scores[0].any()
        lonely = sp.csr_array(np.eye(holes.n_items, dtype=np.float32)[[2]])
        assert np.isfinite(model.score(lonely)).all()
        with pytest.warns(DataWarning, match="1 of 1 histories have nothing that the model knows"):
            ids, values = model.recommend(0, holes.matrix[[0]], N=3)
        assert ids.tolist() == [0, 1, 2]
        assert not values.any()

    @pytest.mark.parametrize(
        "touched",
        [np.ones((1, 1)), np.ones((5, 1)), np.eye(6)],
        ids=["one and one", "one item", "strangers"],
    )
    def test_degenerate_catalogues(self, touched: NDArray[np.float64]) -> None:
        model = self.fit(touched)
        scores = model.score(sp.csr_array(touched))
        assert scores.shape == touched.shape
        assert np.isfinite(scores).all()
        ids, _ = model.recommend(0, sp.csr_array(touched[:1]), N=2)
        assert ids.shape == (2,)

    @pytest.mark.parametrize("shape", [(1, 1), (4, 6), (0, 4)])
    def test_nothing_to_learn_from(self, shape: tuple[int, int]) -> None:
        with pytest.raises(
            UsageError, match=f"{shape[0]} users and {shape[1]} items, and no inter"
        ):
            self.fit(sp.csr_array(shape))

    def test_nobody_asks(self) -> None:
        model = self.fit(np.eye(4))
        assert self.empty_is_popular or not model.score(sp.csr_array((3, 4))).any()
        assert model.score(sp.csr_array((0, 4))).shape == (0, 4)
        ids, _ = model.recommend(np.arange(0), sp.csr_array((0, 4)))
        assert ids.shape == (0, 10)

    # --- sources of the filters -------------------------------------------------------------------

    @pytest.mark.parametrize("data_set", ["default", "gowalla", "yelp2018", "amazon-book"])
    def test_all_forms_of_the_matrix_give_the_same_scores(
        self, small: Dataset, data_set: str
    ) -> None:
        config = self.model.published.get(data_set, self.model().config)
        if hasattr(config, "rank"):
            config = config.model_copy(update={"rank": 20})
        train, x = small.train, small.train.matrix[:20]
        central = centralized(train, rank=config.low_pass_rank, normalisation=config.normalisation)
        in_factors = self.model(config).use(central).score(x)
        forms = [central.written_out()]
        assert isinstance(forms[0].item_item, SparseOperator)
        if getattr(config, "s", 1) == 1 and config.normalisation.is_symmetric:
            forms.append(full_rank(central))
        size = float(np.abs(in_factors).max())
        for form in forms:
            scores = self.model(config).use(form).score(x)
            np.testing.assert_allclose(scores, in_factors, atol=2e-4 * size)

    def test_filters_of_another_normalisation_are_refused(self, holes: Interactions) -> None:
        wanted = self.model(**self.small_rank)
        other = Normalisation(0.25, 0.5, 0.75)
        with pytest.raises(UsageError, match=r"not with exponents 0\.25 \(users\), 0\.5 and 0\.75"):
            wanted.use(centralized(holes, normalisation=other))

    # --- settings ---------------------------------------------------------------------------------

    def test_unknown_settings_are_refused(self) -> None:
        known = list(self.model.config_type.model_fields)
        name = f"{self.model.name}: there is no setting"
        with pytest.raises(UsageError, match=f"{name} zzz; there are {', '.join(known)}$"):
            self.model(zzz=1)
        with pytest.raises(UsageError, match=rf"{name} {known[0]}x; is {known[0]} meant\?$"):
            self.model(**{f"{known[0]}x": 1})
        with pytest.raises(ValueError, match="frozen"):
            self.model().config.gamma = 2  # type: ignore[attr-defined]

    # --- saving -----------------------------------------------------------------------------------

    def test_saved_and_loaded_recommends_the_same(self, small: Dataset, tmp_path: Path) -> None:
        model = self.fit(small.train, rank=8)
        model.save(tmp_path / "new" / "saved", {"note": "kept"})
        loaded = Recommender.load(tmp_path / "new" / "saved")
        assert type(loaded) is self.model
        assert loaded.config == model.config
        kept = SparseOperator if self.model.keeps_item_item else NotKept
        assert isinstance(loaded.components.item_item, kept)
        users, histories = np.arange(200), small.train.matrix
        ids, scores = model.recommend(users, histories)
        loaded_ids, loaded_scores = loaded.recommend(users, histories)
        np.testing.assert_array_equal(ids[:, 0], loaded_ids[:, 0])
        np.testing.assert_allclose(scores, loaded_scores, rtol=1e-4, atol=1e-5)
        # Once it is saved, a model scores from what was saved.
        for mine, theirs in zip(
            model.recommend(users, histories), (loaded_ids, loaded_scores), strict=True
        ):
            np.testing.assert_array_equal(mine, theirs)
        if self.model.derives:
            np.testing.assert_array_equal(scores, loaded_scores)
        # From here on there is only one form, so nothing may change.
        again = Recommender.load(loaded.save(tmp_path / "again"))
        np.testing.assert_array_equal(again.recommend(users, histories)[0], loaded_ids)
        np.testing.assert_array_equal(again.recommend(users, histories)[1], loaded_scores)
        first, second = (tmp_path / name / artifact.ARRAYS for name in ("new/saved", "again"))
        assert first.read_bytes() == second.read_bytes()
        assert json.loads((tmp_path / "new/saved/manifest.json").read_text())["note"] == "kept"

    def test_loading_derives_nothing(
        self, holes: Interactions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = self.fit(holes).save(tmp_path / "saved")

        def refuse(*_: object) -> None:
            raise AssertionError("derived a second time")

        monkeypatch.setattr(self.model, "_derive", refuse)
        loaded = Recommender.load(folder)
        assert loaded.score(holes.matrix).any()
        saved = set(load_file(loaded.save(tmp_path / "again") / artifact.ARRAYS))
        assert {name for name in saved if name.startswith("derived.")} == {
            f"derived.{name}" for name in loaded._kept_arrays(loaded._derived)
        }
        assert self.model.keeps_item_item == any(name.startswith("item_item.") for name in saved)

    def test_nothing_saved_is_as_long_as_the_list_of_users(
        self, holes: Interactions, tmp_path: Path
    ) -> None:
        """Test that no array has a row or a pointer per user; only such arrays have length 30 or
        31."""
        folder = self.fit(holes, rank=3).save(tmp_path / "saved")
        for name, array in load_file(folder / artifact.ARRAYS).items():
            assert not {holes.n_users, holes.n_users + 1} & set(array.shape), name

    def test_low_rank_filters_are_kept_as_they_are(
        self, holes: Interactions, tmp_path: Path
    ) -> None:
        entries = {"s": 1} if "s" in self.model.config_type.model_fields else {}
        model = self.model(**dict.fromkeys(self.small_rank, 3), **entries)
        config = model.config
        if not config.normalisation.is_symmetric:
            pytest.skip("a low-rank matrix is symmetric")
        central = centralized(holes, rank=config.low_pass_rank, normalisation=config.normalisation)
        model.use(full_rank(central))
        loaded = Recommender.load(model.save(tmp_path / "saved"))
        kept = LowRankOperator if self.model.keeps_item_item else NotKept
        assert isinstance(loaded.components.item_item, kept)
        np.testing.assert_array_equal(loaded.score(holes.matrix), model.score(holes.matrix))

    def test_item_ids_are_kept(self, tmp_path: Path) -> None:
        names = np.array(["", "a", "b", "longer name", "zürich 東京"])
        for ids in (names, np.array([3, 5, 10**12, 10**12 + 1, 10**13])):
            train = Interactions.from_matrix(checkerboard(5), item_ids=ids)
            loaded = Recommender.load(self.fit(train).save(tmp_path / "saved"))
            assert loaded.item_ids is not None
            assert loaded.item_ids.tolist() == ids.tolist()

    def test_only_its_own_kind_is_loaded(self, holes: Interactions, tmp_path: Path) -> None:
        folder = self.fit(holes).save(tmp_path / "saved")
        assert type(self.model.load(folder)) is self.model
        other = GFCF if self.model is not GFCF else TurboCF
        name = self.model.name
        with pytest.raises(ArtifactError, match=f"holds a model of {name}: load it with"):
            other.load(folder)

    # --- queries ----------------------------------------------------------------------------------

    def test_only_some_items_or_all_but_some(self, small: Dataset) -> None:
        model, histories = self.fit(small.train, rank=8), small.train.matrix
        users = np.arange(70)
        ids, scores = model.recommend(users, histories[users], N=300)
        some = np.array([250, 3, 17, 3, 99])
        found, values = model.recommend(users, histories[users], N=4, items=some)
        for row in range(70):
            at = np.isin(ids[row], some)
            expected = ids[row][at]
            assert found[row, : len(expected)].tolist() == expected.tolist()
            assert values[row, : len(expected)].tolist() == scores[row][at].tolist()
            assert set(found[row, len(expected) :].tolist()) <= {-1}
        found, _ = model.recommend(users, histories[users], N=5, filter_items=some)
        for row in range(70):
            kept = [item for item in ids[row].tolist() if item not in some]
            assert found[row].tolist() == kept[:5]
        with pytest.raises(UsageError, match="items or filter_items, not both"):
            model.recommend(0, histories[[0]], items=some, filter_items=some)
        with pytest.raises(UsageError, match="item 300 is not in a catalogue of 300"):
            model.recommend(0, histories[[0]], items=[1, 300])
        again = model.recommend(users, histories[users], N=5, recalculate_user=True)
        np.testing.assert_array_equal(again[0], ids[:, :5])

    def test_similar_items_of_many(self, small: Dataset) -> None:
        model = self.fit(small.train, rank=8)
        ids, scores = model.similar_items([4, 9, 4], N=6)
        assert ids.shape == scores.shape == (3, 6)
        for row, item in enumerate((4, 9, 4)):
            one, values = model.similar_items(item, N=6)
            np.testing.assert_array_equal(one, ids[row])
            np.testing.assert_allclose(values, scores[row], rtol=1e-5, atol=1e-6)

    def test_similar_users_are_of_the_same_colour(self) -> None:
        board = checkerboard(20)
        model = self.fit(board, rank=2)
        ids, cosines = model.similar_users([0, 7], board, N=5)
        assert ids.shape == cosines.shape == (2, 5)
        assert set((ids - [[0], [7]]).ravel() % 2) == {0}
        assert 0 not in ids[0]
        assert (cosines <= 1 + 1e-5).all()
        one, alone = model.similar_users(7, board, N=5)
        assert one.shape == (5,)
        np.testing.assert_allclose(alone, cosines[1], rtol=1e-5)
        without, _ = model.similar_users(7, board, N=5, filter_users=one[:2])
        assert not set(one[:2]) & set(without)
        few, values = model.similar_users(7, board, N=3, users=[7, *one[:2]])
        assert set(few) == {*one[:2], -1}  # never the user itself, and -1 if no user is left
        assert np.isneginf(values[2])
        with pytest.raises(UsageError, match="not both"):
            model.similar_users(7, board, users=[1], filter_users=[2])

    def test_explanations_add_up(self, small: Dataset) -> None:
        model, histories = self.fit(small.train, rank=8), small.train.matrix
        (item, *_), (best, *_) = model.recommend(5, histories[[5]], N=3)
        score, because = model.explain(5, histories[[5]], item, N=1000)
        assert score == pytest.approx(best, rel=1e-4, abs=1e-6)
        assert {cause for cause, _ in because} == set(histories[[5]].indices.tolist())
        assert sum(part for _, part in because) == pytest.approx(score, rel=1e-3, abs=1e-5)
        assert [part for _, part in because] == sorted((p for _, p in because), reverse=True)
        assert model.explain(5, histories[[5]], item, N=2).because == because[:2]

    def test_weights_count_where_asked_for(self, small: Dataset) -> None:
        model, histories = self.fit(small.train, rank=8), small.train.matrix
        users = np.arange(3)
        plain = model.recommend(users, histories[users])
        ones = model.recommend(users, histories[users], weighted=True)
        np.testing.assert_allclose(ones[1], plain[1], rtol=1e-4, atol=1e-5)
        weights = histories[[0]].copy()
        weights.data[:] = 1e-6
        weights.data[0] = 2.0
        with pytest.warns(DataWarning, match="each counts as one interaction, whatever its value"):
            np.testing.assert_array_equal(model.recommend(0, weights)[0], plain[0][0])
        ids, _ = model.recommend(0, weights, weighted=True, items=np.arange(300))
        alone = histories[[0]].copy()
        alone.data[1:] = 0
        similar, _ = model.recommend(0, alone, filter_items=histories[[0]].indices)
        assert ids[0] == similar[0]

    def test_names_in_names_out(self, holes: Interactions) -> None:
        names = np.array([f"item {number:02d}" for number in range(17)])
        people = np.array([f"user {number:02d}" for number in range(30)])
        named = Interactions.from_matrix(holes.matrix, people, names)
        model, numbered = self.fit(named), self.fit(holes)
        expected, scores = numbered.recommend([3, 4], holes.matrix[[3, 4]], N=16)
        ids, values = model.recommend(["user 03", "user 04"], named, N=16)
        np.testing.assert_array_equal(values, scores)
        there = np.isfinite(values)
        np.testing.assert_array_equal(ids[there], names[expected[there]])
        assert set(ids[~there]) == {""}
        with pytest.raises(UsageError, match="which the columns of a matrix do not name"):
            model.recommend([3, 4], holes.matrix[[3, 4]])
        assert model.similar_items("item 05", N=1)[0] == [names[numbered.similar_items(5)[0][0]]]
        assert model.similar_users("user 03", named, N=1)[0][0].startswith("user ")
        with pytest.raises(UsageError, match="item 5 is not in a catalogue of 17"):
            model.similar_items(5)
        with pytest.raises(UsageError, match="user nobody is not among 30 users"):
            model.recommend("nobody", named)
        with pytest.raises(UsageError, match="user 03 is no row of a matrix"):
            model.recommend("user 03", holes.matrix[[3]])

    def test_unknown_items_are_counted_aloud(self, holes: Interactions) -> None:
        model = self.fit(holes)
        newer = Interactions.from_pairs([1, 1, 1, 2], [3, 4, 99, 100])
        with pytest.warns(DataWarning, match="2 of 4 interactions are left out; .* not know: 2"):
            ids, _ = model.recommend([1, 2], newer, N=3)
        history = sp.csr_array(([1.0, 1.0], ([0, 0], [3, 4])), shape=(1, 17))
        np.testing.assert_array_equal(ids[0], model.recommend(0, history, N=3)[0])

    def test_what_raised_type_errors_says_what_is_wrong(self, holes: Interactions) -> None:
        model = self.fit(holes)
        with pytest.raises(UsageError, match="no matrix but NoneType"):
            self.fit(None)
        with pytest.raises(UsageError, match=r"no matrix but str.*read_interactions"):
            self.fit("ratings.csv")
        with pytest.raises(UsageError, match="rows are users"):
            self.fit([1, 0, 1])
        with pytest.raises(UsageError, match="no matrix but NoneType"):
            model.recommend(0, None)
        for wrong in (2.5, "10", None, True):
            with pytest.raises(UsageError, match="N must be a whole number"):
                model.recommend(0, holes.matrix[[0]], N=wrong)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="item None is not in a catalogue"):
            model.similar_items(None)  # type: ignore[arg-type]

    def test_it_says_what_it_is(self) -> None:
        model = self.model(**self.small_rank)
        assert eval(repr(model), {self.model.__name__: self.model}).config == model.config  # noqa: S307
        parameters = inspect.signature(self.model).parameters
        assert list(parameters) == list(self.model.config_type.model_fields)
        text = inspect.getdoc(self.model) or ""
        assert len(text.splitlines()[0]) > 20
        for name, field in self.model.config_type.model_fields.items():
            assert f"\n{name} : " in text
            assert field.description, name
