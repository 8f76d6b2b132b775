"""What a night's page shows of the window: the numbers are those of other code on the same rows."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import sklearn.metrics as sk
import torch
from safetensors.torch import load_file

from gigabatch.features.schema import Target
from gigabatch.pipeline.bundle import load_bundle
from gigabatch.pipeline.nightly import findings as module
from gigabatch.pipeline.nightly.comparison import Other, Seen, Window
from gigabatch.pipeline.nightly.findings import (
    Measure,
    by_group,
    findings,
    measure_of,
    row_losses,
    slices_of,
    worse_slices,
)
from tests.pipeline.nightly.test_comparison import slow_reciprocal_ranks
from tests.pipeline.tiny_recipe import CITIES, day_of_rows

BINARY = Target("clicked", "binary")


def window(labels, target=BINARY, **more) -> Window:
    return Window(target, torch.as_tensor(labels).float(), torch.tensor(0.5), **more)


def test_the_loss_of_each_row_is_that_of_scikit_learn():
    random = np.random.default_rng(0)
    chance, labels = random.random(50), random.integers(0, 2, 50)
    found = row_losses(window(labels), torch.tensor(chance))
    wanted = [sk.log_loss([label], [p], labels=[0, 1]) for label, p in zip(labels, chance, strict=True)]
    np.testing.assert_allclose(found, wanted, rtol=1e-9)
    shares, codes = random.dirichlet(np.ones(3), 50), random.integers(0, 3, 50)
    found = row_losses(window(codes, Target("y", "multiclass", 3)), torch.tensor(shares))
    wanted = [sk.log_loss([code], [p], labels=[0, 1, 2]) for code, p in zip(codes, shares, strict=True)]
    np.testing.assert_allclose(found, wanted, rtol=1e-9)
    found = row_losses(window(labels, Target("y", "regression")), torch.tensor(chance))
    wanted = [sk.mean_squared_error([label], [p]) for label, p in zip(labels, chance, strict=True)]
    np.testing.assert_allclose(found, wanted, rtol=1e-9)


def test_the_difference_of_a_group_over_its_error_is_students_t():
    random = np.random.default_rng(1)
    new, old, codes = random.random(400), random.random(400), random.integers(0, 3, 400)
    found = by_group(Measure("log loss", False, np.ones(400), {"candidate": new, "current": old}), codes, 4)
    for code in range(3):
        wanted = scipy.stats.ttest_rel(new[codes == code], old[codes == code])
        assert found["worse"][code] / found["error"][code] == pytest.approx(wanted.statistic)
        assert found["candidate"][code] == pytest.approx(new[codes == code].mean())
    assert np.isnan(found["worse"][3])
    ranks = by_group(Measure("reciprocal rank", True, np.ones(400), {"candidate": new, "current": old}), codes, 3)
    np.testing.assert_allclose(ranks["worse"], -found["worse"][:3])


def test_weights_count_as_so_many_rows():
    random = np.random.default_rng(2)
    new, old, weight = random.random(60), random.random(60), random.integers(0, 4, 60)
    found = by_group(
        Measure("log loss", False, weight.astype(float), {"candidate": new, "current": old}), np.zeros(60, int), 1
    )
    again = np.repeat(new - old, weight)
    assert found["worse"][0] == pytest.approx(again.mean())
    assert found["rows"][0] == (weight > 0).sum()


def test_an_infinite_loss_of_weight_0_leaves_a_slice_its_numbers():
    """0 times infinity is no number, so the slice was passed over."""
    random, weight = np.random.default_rng(2), np.repeat([0.0, 1.0], [3, 200])
    new, old = random.random((2, 203))
    far = np.where(np.arange(203) == 1, np.inf, new)
    found = by_group(Measure("RMSE", False, weight, {"candidate": far, "current": old}), np.zeros(203, int), 1)
    wanted = scipy.stats.ttest_rel(new[3:], old[3:])
    assert found["worse"][0] / found["error"][0] == pytest.approx(wanted.statistic)
    assert found["candidate"][0] == pytest.approx(new[3:].mean())


@pytest.mark.parametrize("light", [0.0, 1e-6])
def test_a_slice_of_few_rows_of_some_weight_is_no_slice(light):
    """One such row had no spread, and so was worse beyond all chance every second night."""
    random, weight = np.random.default_rng(6), np.full(4000, light)
    weight[::50] = 1
    measure = Measure("log loss", False, weight, {role: random.random(4000) for role in ("candidate", "current")})
    assert list(slices_of(measure, "clicked", "city", pd.Series(np.arange(4000) // 50 % 40).astype(str))) == []
    halves = list(
        slices_of(replace(measure, weight=np.arange(4000) % 2.0), "clicked", "city", pd.Series(np.arange(4000) < 2000))
    )
    assert [item.rows for item in halves] == [1000, 1000]


def measured(worse_by: float, seed: int) -> tuple[Measure, pd.Series]:
    """Losses of 20,000 rows; those of Lima are worse by so much."""
    random = np.random.default_rng(seed)
    city = pd.Series(random.choice([*CITIES, None], 20_000), name="city")
    old = random.random(20_000)
    new = old + random.normal(0, 0.2, 20_000) + worse_by * (city == "Lima").to_numpy()
    return Measure("log loss", False, np.ones(20_000), {"candidate": new, "current": old}), city


def test_the_slice_that_got_worse_is_named_and_no_other():
    measure, city = measured(0.05, seed=3)
    slices = list(slices_of(measure, "clicked", "city", city))
    assert {item.value for item in slices} == {*CITIES, "null"}
    (found,) = worse_slices(slices)
    lima = (city == "Lima").to_numpy()
    assert (found.column, found.value, found.rows) == ("city", "Lima", lima.sum())
    difference = (measure.values["candidate"] - measure.values["current"])[lima]
    assert found.worse == pytest.approx(difference.mean())
    one_sided = scipy.stats.t.isf(0.05 / 6, lima.sum() - 1)  # of six slices
    assert found.noise == pytest.approx(one_sided * difference.std(ddof=1) / np.sqrt(lima.sum()))


def test_where_nothing_got_worse_few_nights_name_a_slice():
    named = sum(bool(worse_slices(list(slices_of(*_of(seed))))) for seed in range(100))
    assert named <= 12  # 5 in the mean; more than 12 once in 700 times
    assert named >= 1  # else the bound is no bound


def _of(seed):
    measure, city = measured(0.0, 100 + seed)
    return measure, "clicked", "city", city


@pytest.mark.parametrize("kind", ["binary", "multiclass", "regression"])
def test_of_rare_labels_few_nights_name_a_slice_of_models_that_are_as_good(kind):
    """Where none of 150 rows had label 1, all of them told alike that the higher of two predictions was worse."""
    named = 0
    for seed in range(60):
        random = np.random.default_rng(seed)
        means, shop = 0.01 * np.exp(0.8 * random.normal(size=6000)), pd.Series(random.integers(0, 40, 6000))
        high, low = means * 1.3, means * 0.75  # m - log m is 1.0376 of both: as far from the truth
        labels = random.random(6000) < means
        target = {"multiclass": Target("y", "multiclass", 2)}.get(kind, Target("y", kind))
        if kind == "regression":
            labels, high, low = random.poisson(means), means * 1.3, means * 0.7
        elif kind == "multiclass":
            high, low = (np.stack([1 - part, part], 1) for part in (high, low))
        known = {"candidate": [(torch.tensor(high), window(labels, target))]}
        known["current"] = [(torch.tensor(low), window(labels, target))]
        seen = Seen(pd.DataFrame({"shop": shop}), {}, known)
        named += bool(worse_slices(list(slices_of(measure_of(seen, 0), "y", "shop", shop))))
    assert named <= 8  # 3 in the mean


def test_rows_of_a_group_are_not_as_many_independent_ones():
    """Rows of a search share what a model is told and what decides their labels: most nights named a slice."""
    named = 0
    for seed in range(40):
        random, group = np.random.default_rng(seed), np.arange(600).repeat(10)
        known, unknown, higher = random.normal(0, 0.8, 600)[group], random.normal(size=600)[group], group % 2 == 0
        labels = random.random(6000) < 0.06 * np.exp(known + unknown - 0.5)
        means, shop = 0.06 * np.exp(known), pd.Series(random.integers(0, 30, 600)[group])
        of = window(labels, group=torch.tensor(group))
        predicted = {
            role: [(torch.tensor(np.minimum(means * np.where(up, 1.3, 0.75), 0.95)), of)]
            for role, up in (("candidate", higher), ("current", ~higher))
        }
        seen = Seen(pd.DataFrame({"shop": shop}), {}, predicted)
        named += bool(worse_slices(list(slices_of(measure_of(seen, 0), "y", "shop", shop))))
    assert named <= 6  # 2 in the mean


def test_the_spread_of_a_few_groups_is_itself_uncertain():
    """Of four shops a city, of which chance makes some alike, nearly every third night named a city."""
    named, shop = 0, np.arange(80).repeat(60)
    city = pd.Series(shop % 20)
    for seed in range(60):
        random = np.random.default_rng(seed)
        labels, group = random.normal(size=4800), torch.tensor(shop)
        of = window(labels, Target("y", "regression"), group=group)
        predicted = {
            role: [(torch.tensor(labels + random.normal(size=4800) + random.normal(size=80)[shop]), of)]
            for role in ("candidate", "current")
        }
        seen = Seen(pd.DataFrame({"city": city}), {}, predicted)
        named += bool(worse_slices(list(slices_of(measure_of(seen, 0), "y", "city", city))))
    assert named <= 6  # 3 in the mean


def test_the_chance_of_a_difference_is_the_variance_over_labels_that_are_drawn():
    random = np.random.default_rng(3)
    new, old = random.uniform(0.05, 0.4, size=(2, 4))
    weight = torch.tensor([1.0, 2.0, 0.0, 0.5])

    def difference(labels) -> np.ndarray:
        of = window(labels, weight=weight)
        return (weight.double() * (row_losses(of, torch.tensor(new)) - row_losses(of, torch.tensor(old)))).numpy()

    draws = np.stack([difference(random.random(4) < (new + old) / 2) for _ in range(20_000)])
    of = window([0, 1, 0, 0], weight=weight)
    seen = Seen(pd.DataFrame(), {}, {"candidate": [(torch.tensor(new), of)], "current": [(torch.tensor(old), of)]})
    found = module.chance_of_losses(seen, 0)
    np.testing.assert_allclose(found, draws.var(0), rtol=0.05, atol=1e-9)


def test_small_slices_and_a_column_of_one_value_are_left_out():
    measure, city = measured(0.0, seed=4)
    assert list(slices_of(measure, "clicked", "city", pd.Series(["Oslo"] * len(city)))) == []
    few = pd.Series(np.where(np.arange(len(city)) < 99, "few", "many"))
    assert [item.value for item in slices_of(measure, "clicked", "city", few)] == ["many"]


def test_identical_models_have_no_worse_slice():
    measure, city = measured(0.0, seed=5)
    same = Measure(
        "log loss", False, measure.weight, dict.fromkeys(("candidate", "current"), measure.values["current"])
    )
    assert worse_slices(list(slices_of(same, "clicked", "city", city))) == ()


def test_with_drawn_negatives_the_measure_is_each_positives_reciprocal_rank():
    random = np.random.default_rng(6)
    labels, group = np.tile([1.0, 0, 0, 0], 30), np.repeat(np.arange(30), 4)
    scores = random.integers(0, 4, 120).astype("float32")  # with ties
    seen = Seen(
        pd.DataFrame({"x": range(30)}),
        {},
        {"candidate": [(torch.tensor(scores), window(labels, group=torch.tensor(group)))]},
    )
    found = measure_of(seen, 0)
    assert (found.name, found.more_is_better) == ("reciprocal rank", True)
    np.testing.assert_allclose(found.values["candidate"], slow_reciprocal_ranks(scores, labels, group))
    np.testing.assert_allclose(measure_of(seen, 0, step=7).values["candidate"], found.values["candidate"][::7])


@pytest.fixture(scope="module")
def seen(trained) -> tuple[Seen, pd.DataFrame]:
    """A trained run against a made-up current model, on a day with cities that no training has seen."""
    run = trained[1]
    bundle, frame = load_bundle(run.path / "model"), day_of_rows(1, 2000)
    frame.loc[:299, "city"] = "Nuuk"
    frame.loc[200:, "product"] = frame.loc[200:, "product"].where(frame.index[200:] % 10 != 0, "p-new")
    scores = torch.tensor(bundle.predict(frame)["clicked"].to_numpy())
    of = window(frame["clicked"].to_numpy())
    others = {role: Other(run.path.name, bundle, {}) for role in ("candidate", "current")}
    return Seen(frame, others, {"candidate": [(scores, of)], "current": [(scores * 0.5 + 0.25, of)]}), frame


def test_rows_with_unseen_values_are_counted_and_judged(seen, trained):
    found, frame = findings(seen[0], trained[0].home), seen[1]
    scores = seen[0].predicted["candidate"][0][0].numpy()
    new_city, new_product = (frame["city"] == "Nuuk").to_numpy(), (frame["product"] == "p-new").to_numpy()
    wanted = {
        "every value known to the new model": ~(new_city | new_product),
        "city: unseen by the new model": new_city,
        "product: unseen by the new model": new_product,
    }
    assert {item.rows: item.count for item in found.unseen} == {name: rows.sum() for name, rows in wanted.items()}
    for item in found.unseen:
        rows = wanted[item.rows]
        assert item.share == pytest.approx(rows.mean())
        assert item.candidate == pytest.approx(
            sk.log_loss(frame["clicked"][rows], scores[rows].astype("float64")), rel=1e-5
        )
        assert item.auc == pytest.approx(sk.roc_auc_score(frame["clicked"][rows], scores[rows]))
        assert item.auc_current == pytest.approx(item.auc)
        assert item.gain == pytest.approx(item.current - item.candidate)
    assert (found.rows, found.window, found.measure) == (2000, 2000, "log loss")


def test_the_state_of_each_table_is_that_of_the_files(seen, trained):
    found, run = findings(seen[0], trained[0].home), trained[1].path
    weights, kept = (
        load_file(run / "model" / "weights.safetensors"),
        load_file(run / "training" / "optimizer.safetensors"),
    )
    tables = {tuple(value.shape): value for name, value in weights.items() if "tables" in name}
    assert {item.column for item in found.tables} == {"city", "product", "store"}
    for item in found.tables:
        table = tables[(item.values + 3, item.width)][3:]  # without padding, null and unseen
        norms = np.linalg.norm(table.numpy(), axis=1)
        assert item.largest == pytest.approx(norms.max(), rel=1e-5)
        assert item.norm == pytest.approx(np.sort(norms)[(len(norms) - 1) // 2], rel=1e-5)
        assert item.never_trained == int((kept[f"trained rows of|{item.column}"][3:] == 0).sum()) == 0
        assert item.broken == 0


def test_a_run_of_an_older_version_does_not_tell_what_was_trained_and_a_broken_row_is_counted(seen, tmp_path):
    bundle = seen[0].others["candidate"].bundle
    table = next(m for m in bundle.model.modules() if type(m).__name__ == "EmbeddingTables").weights[0]
    before = table.detach().clone()
    with torch.no_grad():
        table[4, 0] = torch.nan
    try:
        found = list(module.table_health(bundle, tmp_path / "nowhere"))
    finally:
        with torch.no_grad():
            table.copy_(before)
    assert [item.never_trained for item in found] == [None] * 3
    assert [item.broken for item in found] == [1, 0, 0]
    assert np.isfinite([item.largest for item in found]).all()


def assert_neighbours(curve, scores: torch.Tensor, labels: torch.Tensor) -> None:
    """Each bin has enough rows, neighbours by their scores, and their means."""
    counts, order = np.asarray(curve.count).astype(int), scores.argsort()
    assert counts.min() >= 50
    assert counts.sum() == len(labels)
    score, label = (part[order].double().numpy() for part in (scores, labels))
    ends = np.cumsum(counts)[:-1]
    np.testing.assert_allclose(curve.observed, [part.mean() for part in np.split(label, ends)], rtol=1e-9)
    np.testing.assert_allclose(curve.predicted, [part.mean() for part in np.split(score, ends)], rtol=1e-9)


def test_calibration_of_a_rare_label_shows_more_than_one_point():
    """All predictions of both models lie in the first of fifteen bins of equal width."""
    random = np.random.default_rng(3)
    chance = torch.tensor(random.beta(1, 60, 5000))
    labels = torch.tensor(random.random(5000)) < chance
    of = window(labels.float().numpy())
    predicted = {"candidate": [(chance, of)], "current": [(chance / 2, of)]}
    curves = module.calibrations(Seen(labels, {}, predicted), 0, of.target)
    for role, scores in (("candidate", chance), ("current", chance / 2)):
        assert len(curves[role].count) >= 5
        assert_neighbours(curves[role], scores, labels)


def test_calibration_is_that_of_both_models_and_none_is_made_up(seen, trained):
    curves = findings(seen[0], trained[0].home).calibration["clicked"]
    assert list(curves) == ["candidate", "current"]
    scores, of = seen[0].predicted["current"][0]
    assert_neighbours(curves["current"], scores, of.labels)
    number = Target("clicked", "regression")
    assert module.calibrations(Seen(seen[1], {}, {"candidate": [(scores, window(of.labels, number))]}), 0, number) == {}


def test_calibration_takes_rows_of_a_group_for_what_they_are():
    random = np.random.default_rng(6)
    scores = random.random(400).repeat(5)
    labels, group = (random.random(400) < scores[::5]).astype(float).repeat(5), torch.arange(400).repeat_interleave(5)
    bars = []
    for given in (None, group):
        predicted = {"candidate": [(torch.tensor(scores), window(labels, group=given))]}
        found = module.calibrations(Seen(scores, {}, predicted), 0, BINARY)["candidate"]
        bars.append(float((found.high - found.low).mean()))
    assert bars[1] > 1.8 * bars[0]  # the root of 5, but for what Wilson's interval has beside it


def test_with_a_prior_losses_and_calibration_are_those_where_the_model_serves(seen, trained, monkeypatch):
    """As of rows in which each of label 0 is there three times."""
    plain = findings(seen[0], trained[0].home)
    monkeypatch.setitem(seen[0].others["candidate"].bundle.info, "prior_shift", -np.log(3))
    found = findings(seen[0], trained[0].home)
    assert (plain.serving, found.serving) == (False, True)
    scores, of = seen[0].predicted["candidate"][0]
    scores, labels = scores.numpy().astype("float64"), of.labels.double().numpy()
    times = np.where(labels == 1, 1, 3)
    repeated, label = np.repeat(scores, times), np.repeat(labels, times)
    curve = found.calibration["clicked"]["candidate"]
    order = repeated.argsort(kind="stable")  # a bin's count is of the rows that are there
    ends = times[scores.argsort(kind="stable")].cumsum()[np.asarray(curve.count).astype(int).cumsum() - 1]
    wanted = [part.mean() for part in np.split(label[order], ends[:-1])]
    np.testing.assert_allclose(curve.observed, wanted, rtol=1e-9)
    measure = measure_of(seen[0], 0)
    mean = np.average(measure.values["candidate"], weights=measure.weight)
    assert mean == pytest.approx(sk.log_loss(label, repeated), rel=1e-6)


def test_many_rows_are_sampled_evenly_and_that_is_told(seen, trained, monkeypatch):
    monkeypatch.setattr(module, "BUDGET", 1500)  # three columns: every fourth of 2,000 rows
    found = findings(seen[0], trained[0].home)
    assert (found.rows, found.window) == (500, 2000)
    (city,) = (item for item in found.unseen if item.rows.startswith("city"))
    assert city.count == 75
    scores, of = seen[0].predicted["candidate"][0]
    assert city.auc == pytest.approx(sk.roc_auc_score(of.labels[:300:4], scores[:300:4]))


def test_a_first_model_has_no_slices_and_no_gain(seen, trained):
    others, predicted = ({"candidate": parts["candidate"]} for parts in (seen[0].others, seen[0].predicted))
    found = findings(Seen(seen[1], others, predicted), trained[0].home)
    assert (found.slices, found.looked_at) == ((), 0)
    assert np.isnan([item.gain for item in found.unseen]).all()
    assert np.isfinite([item.candidate for item in found.unseen]).all()
