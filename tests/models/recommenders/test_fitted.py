"""Models that take no steps, held against pandas, scikit-learn and the papers' formulas."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.neighbors import NearestNeighbors

from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import EntityColumns, ModelInputs
from gigabatch.models.losses import TargetLoss
from gigabatch.models.model import SCORE_ATOL, SCORE_RTOL
from gigabatch.models.recommenders import ease, item_knn
from gigabatch.models.recommenders.ease import item_gram
from gigabatch.models.recommenders.fitted import LEAST_SLOPE, line_of
from gigabatch.models.recommenders.item_knn import nearest_items
from gigabatch.models.shelf import ModelSpec, model_class
from tests.examples import examples
from tests.models.shelf_helpers import Rows

KINDS = ("popularity", "top_frequency", "item_knn", "ease")
USERS, ITEMS, FIRST = 60, 40, 3
INPUTS = ModelInputs(
    (ITEMS, 4, USERS), 1, 1, user=EntityColumns(2, (2,), first=FIRST), item=EntityColumns(0, (0, 1), first=FIRST)
)


def log_of(num_rows=2000, seed=0) -> pd.DataFrame:
    """Choices with repeats, labels of 0, weights of which some are 0, null and unseen users and items; users from 50
    and items from 35 on have no row."""
    draw = np.random.default_rng(seed)
    likes = draw.dirichlet(np.full(ITEMS - 5, 0.3), 50)
    users = draw.integers(0, 50, num_rows)
    items = np.array([draw.choice(ITEMS - 5, p=likes[user]) for user in users])
    return pd.DataFrame(
        {"user": users, "item": items, "label": draw.random(num_rows) < 0.7, "weight": draw.integers(0, 4, num_rows)}
    )


def rows_of(log: pd.DataFrame, weighted=True) -> Rows:
    ids = np.stack([log["item"], np.zeros(len(log)), log["user"]], axis=1)
    weight = torch.tensor(log["weight"].to_numpy(np.float32)) if weighted else None
    labels = torch.tensor(log["label"].to_numpy(np.float32))
    return Rows(torch.tensor(ids, dtype=torch.int32), torch.zeros(len(log), 1), (labels,), weight)


def chosen(log: pd.DataFrame) -> np.ndarray:
    """X, float64 [USERS, ITEMS]: by a loop over the rows that count."""
    found = np.zeros((USERS, ITEMS))
    for row in log.itertuples():
        if row.label and row.weight > 0 and row.user >= FIRST and row.item >= FIRST:
            found[row.user, row.item] = 1
    return found


def built(kind, inputs=INPUTS, **given):
    return ModelSpec(kind, inputs, model_class(kind).Settings(**given)).build()


def fitted(kind, rows=None, **given):
    model = built(kind, **given)
    model.fit(rows_of(log_of()) if rows is None else rows)
    return model.eval()


def table_of(model) -> np.ndarray:
    """Its logits of every user and item, [USERS, ITEMS], pair by pair."""
    users, items = np.divmod(np.arange(USERS * ITEMS), ITEMS)
    ids = torch.tensor(np.stack([items, np.zeros(len(items)), users], axis=1), dtype=torch.int32)
    with torch.inference_mode():
        return model(ids, torch.zeros(len(ids), 1)).view(USERS, ITEMS).double().numpy()


def popularity_by_hand(log: pd.DataFrame) -> np.ndarray:
    known = log[log["label"] & (log["item"] >= FIRST)]
    return np.log1p(known.groupby("item")["weight"].sum().reindex(range(ITEMS), fill_value=0).to_numpy(float))


def ease_by_hand(x: np.ndarray, l2: float) -> np.ndarray:
    """Equation 8 of arXiv 1905.03375, as in its figure: scores of all users."""
    inverse = np.linalg.inv(x.T @ x + l2 * np.eye(x.shape[1]))
    weights = inverse / -np.diag(inverse)
    np.fill_diagonal(weights, 0)
    return x @ weights


def knn_by_hand(x: np.ndarray, k: int, shrinkage: float) -> np.ndarray:
    """Loops over items and users; of equal nearness the smaller id is nearer."""
    both, size = x.T @ x, np.sqrt(x.sum(0))
    scores = np.zeros(x.shape)
    for item in range(x.shape[1]):
        others = [j for j in range(x.shape[1]) if j != item and both[item, j] > 0]
        near = {j: both[item, j] / (size[item] * size[j] + shrinkage) for j in others}
        for j in sorted(others, key=lambda j: (-near[j], j))[:k]:
            scores[:, item] += x[:, j] * near[j]
    return scores


def close(found, expected) -> None:
    np.testing.assert_allclose(found, expected, rtol=SCORE_RTOL, atol=SCORE_ATOL)


def test_popularity_is_the_summed_weight_of_positive_rows():
    log = log_of()
    expected = popularity_by_hand(log)
    assert (expected > 0).sum() == ITEMS - 5 - FIRST
    close(table_of(fitted("popularity")), np.tile(expected, (USERS, 1)))
    counts = log[log["label"]]["item"].value_counts()
    without = fitted("popularity", rows_of(log, weighted=False))
    close(np.expm1(table_of(without)[0, FIRST:35]), [counts[item] for item in range(FIRST, 35)])


def own_counts(log: pd.DataFrame) -> np.ndarray:
    """How many rows that count each pair has, int64 [USERS, ITEMS]."""
    counted = log[log["label"] & (log["weight"] > 0) & (log["user"] >= FIRST) & (log["item"] >= FIRST)]
    found = np.zeros((USERS, ITEMS), np.int64)
    for (user, item), rows in counted.groupby(["user", "item"]):
        found[user, item] = len(rows)
    return found


def test_a_user_gets_what_they_chose_most_often_then_what_is_popular():
    """Held against pandas, which sorts each user's items by both counts."""
    log = log_of()
    popular, own = popularity_by_hand(log), own_counts(log)
    model = fitted("top_frequency")
    found = table_of(model)
    assert own.max() > 10
    for user in range(USERS):
        sorted_by = pd.DataFrame({"own": own[user], "popular": popular, "score": found[user]})
        sorted_by = sorted_by.sort_values(["own", "popular"])
        rises = sorted_by.drop(columns="score").diff().iloc[1:].any(axis=1)  # else two are alike
        steps = sorted_by["score"].diff().iloc[1:]
        assert (steps[rises] > 0).all()
        assert (steps[~rises] == 0).all()
    some = own.sum(1) > 0
    assert not some.all()
    close(found[~some], np.tile(popular, ((~some).sum(), 1)))
    everyone = torch.zeros(USERS, 3, dtype=torch.int32)
    everyone[:, 2] = torch.arange(USERS)
    assert np.array_equal(model.catalogue_scores(everyone, torch.zeros(USERS, 1)).double().numpy(), found)


def test_an_own_count_stands_above_any_popularity():
    """A choice of a user's own, and an item that a million others took."""
    ids = torch.tensor([[10, 0, 5], [11, 0, 6]], dtype=torch.int32)
    rows = Rows(ids, torch.zeros(2, 1), (torch.ones(2),), torch.tensor([1.0, 1e6]))
    found = table_of(fitted("top_frequency", rows))
    assert found[5, 10] > found[5, 11] > found[5, 12]
    assert found[6, 11] > found[6, 10]


def l2_by_hand(rows: np.ndarray) -> float:
    """A loop over what is tried and over users, each of whom the row is taken that has the least hash. rows: how many
    of each user and item."""
    rows = rows[:, rows.sum(0) > 0][rows.sum(1) > 0]
    x = (rows > 0).astype(float)
    mean, pairs = x.sum() / x.shape[1], x.nonzero()
    hashes = dict(zip(zip(*pairs, strict=True), ease.pair_hashes(*map(torch.from_numpy, pairs)), strict=True))

    def least(user: int) -> int:
        own = [(item, copy) for item in np.flatnonzero(rows[user]) for copy in range(int(rows[user, item]))]
        by = {(i, c): int(ease.mixed(hashes[user, i] + c) if c else hashes[user, i]) for i, c in own}
        return min(by, key=by.__getitem__)[0]

    left_out = {user: least(user) for user in np.flatnonzero(rows.sum(1) > 1)}
    without = rows.copy()
    without[list(left_out), list(left_out.values())] -= 1
    without = (without > 0).astype(float)
    found = {}
    for times in (1, 0.3, 3, 10):
        scores, gain = ease_by_hand(without, times * mean), 0.0
        for user, item in left_out.items():
            others = [j for j in range(x.shape[1]) if j != item and (without[user, item] or not x[user, j])]
            rank = sum(scores[user, j] > scores[user, item] for j in others)
            rank += sum(scores[user, j] == scores[user, item] for j in others) / 2
            gain += 1 / np.log2(rank + 2) if rank < 10 else 0
        found[times * mean] = gain
    return max(found, key=lambda l2: found[l2])


@pytest.mark.parametrize("l2", [1.0, 30.0, None])
def test_ease_is_the_papers_formula(l2):
    log = log_of()
    x = chosen(log)
    counted = log[log["label"] & (log["weight"] > 0)]
    rows = np.zeros_like(x)
    np.add.at(rows, (counted["user"], counted["item"]), x[counted["user"], counted["item"]])
    used = l2_by_hand(rows) if l2 is None else l2
    some = x.sum(1) > 0
    assert 0 < some.sum() < 50
    found = table_of(fitted("ease", l2=l2))
    close(found[some], ease_by_hand(x, used)[some])
    assert (ease_by_hand(x, used)[some] < 0).any()
    close(found[~some], np.tile(popularity_by_hand(log), ((~some).sum(), 1)))


def pairs_of(x: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, int]:
    x = x[:, x.sum(0) > 0]
    users, items = np.nonzero(x)
    return torch.tensor(users), torch.tensor(items), x.shape[1]


def tastes(num_users: int, num_items: int) -> np.ndarray:
    """X of users with 6 tastes, who take the 8 items that they and chance like best."""
    draw = np.random.default_rng(3)
    likes = draw.normal(size=(num_users, 6)) @ draw.normal(size=(6, num_items))
    likes += draw.gumbel(size=(num_users, num_items))
    return (likes.argsort(1).argsort(1) >= num_items - 8).astype(float)


@pytest.mark.parametrize(
    ("users", "items", "times"), [(1500, 60, 0.3), (100, 60, 1.0), (60, 60, 3.0), (100, 100, 10.0)]
)
def test_l2_is_the_larger_the_less_rows_say(users, items, times):
    x = tastes(users, items)
    found = ease.chosen_l2(*pairs_of(x))
    assert found == pytest.approx(times * x.sum() / (x.sum(0) > 0).sum())
    if users <= 100:  # the loop is slow
        assert found == pytest.approx(l2_by_hand(x))


def test_l2_does_not_go_by_what_only_remembers_the_items_of_a_user():
    """Of three rows of each pair two stay: among what a user does not have the least l2 found nearly each of them."""
    x = tastes(100, 100)
    x = x[:, x.sum(0) > 0]
    once, again = ((x * times).astype(np.int64) for times in (1, 3))
    users, items, num_items = pairs_of(x)
    chosen = [ease.chosen_l2(users, items, num_items, torch.tensor(rows[users, items])) for rows in (once, again)]
    assert chosen == [pytest.approx(l2_by_hand(once)), pytest.approx(l2_by_hand(again))]
    assert chosen[0] == ease.chosen_l2(users, items, num_items)
    assert chosen[1] > 0.3 * x.sum() / num_items


def test_l2_is_the_mean_where_there_is_nothing_to_choose_by(monkeypatch):
    users, items = torch.arange(6), torch.tensor([0, 0, 0, 1, 1, 1])
    assert ease.chosen_l2(users, items, 2) == 3  # no user has two items
    some = pairs_of(tastes(60, 60))
    assert ease.chosen_l2(*some) == 3 * 8
    monkeypatch.setattr(ease, "MOST_ITEMS_TO_CHOOSE", 59)
    assert ease.chosen_l2(*some) == 8


def test_the_choice_of_l2_does_not_depend_on_how_users_and_items_are_numbered(monkeypatch):
    """Renaming them made it any of three."""
    x = tastes(150, 60)
    draw, least = np.random.default_rng(0), []
    for asked in (ease.MOST_USERS_TO_CHOOSE, 20):
        monkeypatch.setattr(ease, "MOST_USERS_TO_CHOOSE", asked)
        shuffled = [x[draw.permutation(150)][:, draw.permutation(60)] for _ in range(6)]
        assert len({ease.chosen_l2(*pairs_of(one)) for one in (x, *shuffled)}) == 1
    for one in (x, *shuffled):
        users, items, _ = pairs_of(one)
        hashes = ease.pair_hashes(users, items)
        least.append(hashes.sort().values.tolist())
        assert len(set(hashes.tolist())) == len(hashes)
    assert all(one == least[0] for one in least)


def test_of_items_that_nothing_tells_apart_any_may_be_left_out():
    """The first of them by number always: then nobody had it, and nothing was found."""
    users, items = torch.arange(40).repeat_interleave(2), torch.arange(80) % 4
    assert len(set(ease.pair_hashes(users, items).tolist())) == 1
    assert ease.chosen_l2(users, items, 4) == 20


def test_the_choice_of_l2_does_not_depend_on_blocks_and_asks_some_of_many_users(monkeypatch):
    some = pairs_of(tastes(300, 50))
    whole = ease.chosen_l2(*some)
    monkeypatch.setattr(ease, "USERS_AT_ONCE", 7)
    assert ease.chosen_l2(*some) == whole
    monkeypatch.setattr(ease, "MOST_USERS_TO_CHOOSE", 1)
    assert ease.chosen_l2(*some) in [pytest.approx(times * len(some[0]) / some[2]) for times in ease.L2_TIMES]


@pytest.mark.parametrize(("neighbours", "shrinkage"), [(5, 0.0), (5, 10.0), (100, 2.5), (1, 0)])
def test_item_knn_is_a_loop_over_neighbours(neighbours, shrinkage):
    log = log_of()
    x = chosen(log)
    some = x.sum(1) > 0
    found = table_of(fitted("item_knn", neighbours=neighbours, shrinkage=shrinkage))
    close(found[some], knn_by_hand(x, neighbours, shrinkage)[some])
    close(found[~some], np.tile(popularity_by_hand(log), ((~some).sum(), 1)))


def test_neighbours_without_shrinkage_are_scikit_learns():
    x = chosen(log_of())
    model = fitted("item_knn", neighbours=6, shrinkage=0.0)
    near = NearestNeighbors(n_neighbors=7, metric="cosine").fit(x.T[FIRST:35]).kneighbors(x.T[FIRST:35])[0]
    close(model.nearness[FIRST:35].numpy(), 1 - near[:, 1:])  # the first is the item itself
    of_pairs = cosine_similarity(x.T)
    for item in range(FIRST, 35):
        close(model.nearness[item].numpy(), of_pairs[item, model.neighbours[item].numpy()])


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_row_of_scores_is_what_each_pair_has(kind):
    model = fitted(kind)
    model.slope.copy_(torch.tensor([1.7, 0.6]))
    model.shift.copy_(torch.tensor([-2.0, 0.3]))
    ids = torch.stack([torch.full((USERS,), 7), torch.zeros(USERS), torch.arange(USERS)], dim=1).int()
    close(model.catalogue_scores(ids, torch.zeros(USERS, 1)).numpy(), table_of(model))
    assert model.catalogue_scores(ids[:0], torch.zeros(0, 1)).shape == (0, ITEMS)
    assert model(ids[:0], torch.zeros(0, 1)).shape == (0, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_small_blocks_give_the_same(kind, monkeypatch):
    whole = table_of(fitted(kind))
    monkeypatch.setattr(ease, "TERMS_AT_ONCE", 7)
    monkeypatch.setattr(ease, "DENSE_NUMBERS", 3 * ITEMS)
    monkeypatch.setattr(item_knn, "PRODUCTS_AT_ONCE", 100)
    close(table_of(fitted(kind)), whole)


@settings(max_examples=examples(40))
@given(st.integers(0, 10**6), st.sampled_from(KINDS))
def test_neither_the_order_of_rows_nor_a_repeated_row_matters(seed, kind):
    log = log_of(150, seed % 97)
    model = fitted(kind, rows_of(log))
    draw = np.random.default_rng(seed)
    turned = fitted(kind, rows_of(log.iloc[draw.permutation(len(log))]))
    assert all(torch.equal(value, turned.state_dict()[name]) for name, value in model.state_dict().items())
    if kind not in ("popularity", "top_frequency"):  # which count rows
        given = {"l2": 20.0} if kind == "ease" else {}  # left out, it follows from how often a pair comes
        more = pd.concat([log, log.sample(40, replace=True, random_state=seed % 2**31)])
        some = chosen(log).sum(1) > 0
        close(table_of(fitted(kind, rows_of(more), **given))[some], table_of(fitted(kind, rows_of(log), **given))[some])


@settings(max_examples=examples(40))
@given(st.integers(1, 12), st.integers(1, 60), st.integers(0, 10**6))
def test_counts_of_pairs_are_exact_either_way(num_items, num_pairs, seed):
    draw = np.random.default_rng(seed)
    keys = torch.tensor(np.unique(draw.integers(0, 20 * num_items, num_pairs)))
    users, items = keys // num_items, keys % num_items
    x = np.zeros((20, num_items))
    x[users.numpy(), items.numpy()] = 1
    for cost in (0.0, np.inf):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(ease, "SPARSE_COST", cost)
            found = item_gram(users, items, num_items)
        assert found.dtype == torch.float64
        assert np.array_equal(found.numpy(), x.T @ x)


def test_an_item_of_one_user_has_no_neighbours():
    neighbours, nearness = nearest_items(torch.tensor([0, 4, 9]), 4, 3, 0.0)  # each of three users has another item
    assert not neighbours.any()
    assert not nearness.any()


@pytest.mark.parametrize("kind", KINDS)
def test_saved_weights_come_back_bit_for_bit(kind):
    model = fitted(kind)
    model.fit_lines([rows_of(log_of(300, seed=5))])
    again = built(kind)
    again.load_state_dict(model.state_dict())
    assert np.array_equal(table_of(again), table_of(model))
    assert again.is_fitted


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_has_learnt_nothing_says_so(kind):
    model = built(kind)
    assert not model.is_fitted
    with pytest.raises(ModelError, match="has learnt nothing yet"):
        model(torch.zeros(2, 3, dtype=torch.int32), torch.zeros(2, 1))
    with pytest.raises(ModelError, match="has learnt nothing yet"):
        model.catalogue_scores(torch.zeros(2, 3, dtype=torch.int32), torch.zeros(2, 1))
    with pytest.raises(ModelError, match="takes no steps, so it has no training loss"):
        model.training_loss(rows_of(log_of(10)), TargetLoss([("binary", 1)]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("without", ["labels", "weight", "items"])
def test_rows_without_a_positive_are_refused(kind, without):
    log = log_of(100)
    changed = {"labels": {"label": False}, "weight": {"weight": 0}, "items": {"item": 2}}[without]
    with pytest.raises(ModelError, match="hold no positive of a known item"):
        built(kind).fit(rows_of(log.assign(**changed)))


@pytest.mark.parametrize("kind", KINDS)
def test_positives_of_unknown_users_alone_leave_popularity(kind):
    log = log_of(200).assign(user=2)
    close(table_of(fitted(kind, rows_of(log))), np.tile(popularity_by_hand(log), (USERS, 1)))


@pytest.mark.parametrize("tasks", [("regression",), ("multiclass",), ("binary", "binary")])
@pytest.mark.parametrize("kind", KINDS)
def test_other_targets_are_refused(kind, tasks):
    with pytest.raises(ModelError, match="rows with the target 1 of one binary target"):
        built(kind).require_targets(tasks)


def test_a_catalogue_beyond_the_bound_is_refused_with_its_memory():
    inputs = ModelInputs((30_000, 9), 0, item=EntityColumns(0, (0,)), user=EntityColumns(1, (1,)))
    with pytest.raises(ModelError, match=r"30,000 items are more than max_items, 20,000.*3\.4 GiB.*16\.8 GiB while"):
        built("ease", inputs)
    assert built("ease", inputs, max_items=30_000).settings.max_items == 30_000


def loss_by_hand(line, scores, labels, mass):
    weight = mass / mass.mean()
    ones, zeros = weight[labels == 1].sum(), weight[labels == 0].sum()
    wanted = np.where(labels == 1, (ones + 1) / (ones + 2), 1 / (zeros + 2))
    logit = line[0] * scores + line[1]
    return float((weight * (np.logaddexp(0, logit) - wanted * logit)).sum())


@settings(max_examples=examples(40))
@given(st.integers(0, 10**6), st.floats(-3, 3), st.floats(0.01, 100), st.integers(2, 200))
def test_the_line_has_the_least_loss(seed, strength, scale, num_rows):
    """Against scipy's bounded minimiser, of scores that say much, little or the opposite."""
    draw = np.random.default_rng(seed)
    scores = scale * draw.normal(size=num_rows) + scale * draw.normal()
    labels = (draw.random(num_rows) < 1 / (1 + np.exp(-strength * scores / scale))).astype(float)
    mass = draw.uniform(0.1, 3, num_rows)
    given = scores, labels, mass
    least = LEAST_SLOPE / np.sqrt(np.cov(scores, aweights=mass, ddof=0))
    line = line_of(*given)
    assert line[0] >= least * (1 - 1e-9)
    bounds = [(least, None), (None, None)]
    other = minimize(loss_by_hand, [max(1 / scale, least), 0.0], given, "L-BFGS-B", bounds=bounds)
    assert loss_by_hand(line, *given) <= other.fun + 1e-6 * max(abs(other.fun), 1)


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_a_line_of_one_class_or_of_one_score_is_finite(label):
    ones = np.ones(5)
    for scores in (np.arange(5.0), ones):
        slope, shift = line_of(scores, label * ones, ones)
        assert slope > 0
        assert np.isfinite([slope, shift]).all()
        assert (slope * scores.mean() + shift > 0) == (label == 1)


@pytest.mark.parametrize("kind", KINDS)
def test_probabilities_are_right_on_average_and_the_order_stays(kind):
    train, valid = log_of(2000), log_of(1500, seed=3)
    model = fitted(kind, rows_of(train))
    before = table_of(model)
    rows = rows_of(valid.assign(label=np.random.default_rng(1).random(len(valid)) < 0.2))
    model.fit_lines([rows.part(torch.arange(700)), rows.part(torch.arange(700, 1500))])
    after = table_of(model)
    known = chosen(train).sum(1) > 0
    for users in (known, ~known):  # each has a line of its own, which rises
        first, then = before[users].ravel(), after[users].ravel()
        assert (np.diff(then[np.argsort(first, kind="stable")]) >= -1e-4).all()
    with torch.inference_mode():
        chance = model(rows.ids, rows.floats)[:, 0].sigmoid()
    of_known = torch.tensor(known)[rows.ids[:, 2].long()] | (kind == "popularity")
    mean = (chance * rows.weight)[of_known].sum() / rows.weight[of_known].sum()
    wanted = (rows.targets[0] * rows.weight)[of_known].sum() / rows.weight[of_known].sum()
    assert abs(float(mean - wanted)) < 0.01


def test_lines_stay_where_no_row_has_a_weight():
    model = fitted("ease")
    model.fit_lines([])
    model.fit_lines([rows_of(log_of(20).assign(weight=0))])
    assert model.slope.tolist() == [1, 1]
    assert model.shift.tolist() == [0, 0]


def test_a_fit_that_fails_leaves_what_was_fitted_before(monkeypatch):
    """A model whose first fit failed said that it had learnt, and scored all pairs alike."""
    log = log_of()
    model, rows = built("ease"), rows_of(log)
    monkeypatch.setattr(ease, "solved", lambda gram: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model.fit(rows)
    assert not model.is_fitted
    monkeypatch.undo()
    model.fit(rows)
    expected = model(rows.ids, rows.floats)
    monkeypatch.setattr(ease, "solved", lambda gram: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model.fit(rows_of(log.head(100)))
    assert torch.equal(model(rows.ids, rows.floats), expected)
