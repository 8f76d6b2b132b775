"""scikit-learn's own checks of the estimators and transformers, and what these do not look at."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from sklearn.base import clone
from sklearn.compose import ColumnTransformer, make_column_transformer
from sklearn.datasets import make_classification
from sklearn.exceptions import DataConversionWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.errors import DataError
from gigabatch.features.schema import Column, Schema
from gigabatch.features.workflow.workflow import Workflow
from gigabatch.pipeline.bundle import BundleError, load_bundle
from gigabatch.pipeline.config.config import ConfigError, TrainSettings
from gigabatch.pipeline.python.estimators import WITHOUT_EFFECT, GigabatchClassifier, GigabatchRegressor
from gigabatch.pipeline.python.transformers import PreprocessorTransformer, WorkflowTransformer, read_frame
from gigabatch.pipeline.serving.ranker import null_row
from gigabatch.pipeline.serving.scorer import RowScorer
from gigabatch.pipeline.serving.served import load_served
from gigabatch.pipeline.serving.swap import signature

WEIGHTS = (
    "a row of weight 2 and the row twice fill other batches, whose steps differ, and the preprocessor counts rows, not "
    "weights"
)
EXPECTED = {"check_sample_weight_equivalence_on_dense_data": WEIGHTS}
# The model computes in float32, whose products of another number of rows differ in the last bit on some processors;
# scikit-learn allows float64 results, which values of a regression are, 1e-7.
IN_FLOAT32 = dict.fromkeys(["check_methods_subset_invariance", "check_methods_sample_order_invariance"], "float32")


@pytest.fixture
def rows() -> pd.DataFrame:
    random = np.random.default_rng(0)
    seen = pd.Timestamp("2024-01-01") + pd.to_timedelta(random.integers(0, 400, 200), unit="D")
    return pd.DataFrame(
        {"city": random.choice(["Oslo", "Bonn", "Rom"], 200), "price": random.normal(size=200), "seen": seen}
    )


@pytest.fixture
def sold(rows) -> np.ndarray:
    return np.where((rows["price"] > 0) ^ (rows["city"] == "Rom"), "yes", "no")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [GigabatchClassifier, GigabatchRegressor])
def test_estimators_pass_scikit_learns_checks(kind):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # checks give what warns, such as constant columns
        checked = kind(random_state=0, train={"epochs": 10})  # 60 by default on so few rows, in each of 150 fits
        found = check_estimator(checked, expected_failed_checks=EXPECTED | IN_FLOAT32, on_skip=None)
    failed = {item["check_name"] for item in found if item["status"] == "xfail"}
    assert failed - set(IN_FLOAT32) == set(EXPECTED)
    assert sum(item["status"] == "passed" for item in found) > 50


def test_values_of_some_rows_in_another_order_are_those_of_all():
    """`IN_FLOAT32` by the precision of the computation."""
    x = np.random.default_rng(0).uniform(0, 3, (20, 3))
    model = GigabatchRegressor(random_state=0, train={"epochs": 5}).fit(x, x[:, 0])
    whole, order = model.predict(x), np.arange(20)[::-1]
    apart = np.concatenate([model.predict(x[[row]]) for row in order])
    np.testing.assert_allclose(apart, whole[order], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [PreprocessorTransformer, WorkflowTransformer])
def test_transformers_pass_scikit_learns_checks(kind):
    found = check_estimator(kind(), on_skip=None)
    assert sum(item["status"] == "passed" for item in found) > 40


def test_a_frame_with_categories_dates_and_nulls_is_learnt(rows, sold):
    rows.loc[[1, 2, 3], ["city", "price"]] = None
    rows.loc[4, "seen"] = None
    model = GigabatchClassifier(random_state=0, train={"epochs": 40}).fit(rows, sold)
    assert model.classes_.tolist() == ["no", "yes"]
    assert model.score(rows, sold) > 0.9
    found = model.predict_proba(rows)
    assert np.allclose(found.sum(axis=1), 1)
    assert model.feature_names_in_.tolist() == ["city", "price", "seen"]
    table = pa.Table.from_pandas(rows, preserve_index=False)
    assert np.array_equal(model.predict_proba(table), found)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(rows[["price", "city", "seen"]])


def test_the_same_seed_gives_the_same_model_and_leaves_torch_as_it_was(rows, sold):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one = GigabatchClassifier(random_state=1, train={"epochs": 2}).fit(rows, sold)
    assert torch.equal(torch.get_rng_state(), before)
    other = clone(one).fit(rows, sold)
    assert np.array_equal(one.predict_proba(rows), other.predict_proba(rows))
    another = clone(one).set_params(random_state=2).fit(rows, sold)
    assert not np.array_equal(one.predict_proba(rows), another.predict_proba(rows))


def test_a_pickled_or_saved_estimator_predicts_the_same(rows, sold, tmp_path):
    model = GigabatchClassifier(random_state=0, train={"epochs": 2}).fit(rows, sold)
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict_proba(rows), model.predict_proba(rows))
    model.bundle_.save(tmp_path)
    found = load_bundle(tmp_path).predict_raw(rows)
    assert np.array_equal(found.to_numpy()[:, 0].astype(np.float64), model.predict_proba(rows)[:, 1])


def test_weights_count(rows):
    """Rows of contradicting labels: the heavier ones win."""
    twice = pd.concat([rows, rows], ignore_index=True)
    labels, heavy = np.repeat([0, 1], len(rows)), np.repeat([1.0, 9.0], len(rows))
    share = [
        GigabatchClassifier(random_state=0, train={"epochs": 10}).fit(twice, labels, weight).predict_proba(rows)[:, 1]
        for weight in (heavy, heavy[::-1])
    ]
    assert share[0].mean() > 0.8
    assert share[1].mean() < 0.2


def test_models_and_settings_can_be_searched():
    x, y = make_classification(80, n_features=4, random_state=0)
    search = GridSearchCV(
        GigabatchClassifier(random_state=0, model="lr"), {"train": [{"epochs": 1}, {"epochs": 5}]}, cv=2
    ).fit(x, y)
    assert search.best_estimator_.bundle_.model.__class__.__name__ == "LogisticRegression"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x, y: (x, np.full(len(x), "a")), "one class alone, 'a'"),
        (lambda x, y: (x.head(0), y[:0]), r"0 sample\(s\)"),
        (lambda x, y: (x, [None, *y[1:]]), "contains NaN, infinity or a null"),
        (lambda x, y: (x[[]].assign(lag=b"1h"), y), "no column is left.*columns of type binary"),
    ],
)
def test_what_cannot_be_learnt_is_a_clear_error(rows, sold, change, said):
    with pytest.raises(ValueError, match=said):
        GigabatchClassifier().fit(*change(rows, sold))


@pytest.mark.parametrize(
    "values",
    [pd.Categorical([1, 2, 3] * 20), ["Oslo", "Bonn", "Rom"] * 20, pd.date_range("2024-01-01", periods=60)],
    ids=["categories", "text", "dates"],
)
def test_a_frame_of_numbered_columns_is_a_matrix_of_numbers_alone(values):
    """Categories of numbers were read as amounts; text and dates ended in an error that named no column."""
    x, y = pd.DataFrame({0: np.arange(60.0), 1: values}), np.arange(60) % 2
    for estimator in (GigabatchClassifier(), PreprocessorTransformer()):
        with pytest.raises(DataError, match=r"column 1 is of type .* Give names: X.columns = "):
            estimator.fit(x, y)
    numbers = x.assign(**{"1": 0}).set_axis([0, 1, 2], axis=1)[[0, 2]].astype({0: "Int64", 2: "bool"})
    assert PreprocessorTransformer().fit(numbers).n_features_in_ == 2
    flags = pd.DataFrame({0: np.arange(60.0), 1: [k % 3 == 0 for k in range(60)]})
    found = [
        read_frame(PreprocessorTransformer(), flags.astype({1: dtype}), reset=True)["x1"].astype(float).tolist()
        for dtype in ("bool", "boolean", "bool[pyarrow]")
    ]
    assert found == [[1.0, 0.0, 0.0] * 20] * 3


def test_numbered_columns_are_taken_where_it_is_known_what_they_are():
    """Categories after a fit on names, by place; Arrow's booleans are numbers to a matrix."""
    codes = np.random.default_rng(0).integers(0, 6, 600)
    y, noise = np.isin(codes, [0, 3, 5]).astype(int), np.random.default_rng(1).normal(size=600)
    texts = pd.DataFrame({"code": pd.Categorical(np.array(list("abcdef"))[codes]), "noise": noise})
    model = GigabatchClassifier(random_state=0, train={"epochs": 20}).fit(texts, y)
    with pytest.warns(UserWarning, match="feature names"):
        assert (model.predict(texts.set_axis([0, 1], axis=1)) == y).all()
    flags = pd.DataFrame({0: pd.array(y == 1, dtype="bool[pyarrow]"), 1: noise})
    assert (GigabatchClassifier(random_state=0, train={"epochs": 20}).fit(flags, y).predict(flags) == y).all()


def test_a_categorical_column_of_a_matrix_is_refused():
    """It was a number all the same."""
    x, y = np.stack([np.arange(60.0) % 7, np.arange(60.0)], axis=1), np.arange(60) % 2
    for rows in (x, pd.DataFrame(x)):
        for kind in (GigabatchClassifier, PreprocessorTransformer):
            with pytest.raises(DataError, match=r"categorical names 'x0', and a matrix, .* is all numbers\."):
                kind(categorical=["x0"]).fit(rows, y)


def test_roles_of_columns_are_lists_of_names(rows, sold):
    """Text was taken for a column a letter, which a frame may have; an index of pandas ended with its word on truth."""
    found = rows.assign(a=np.arange(len(rows)) % 7, b=np.arange(len(rows)) % 5 * 1.0)
    calls = [
        lambda names: GigabatchClassifier(categorical=names, train={"epochs": 1}).fit(found, sold),
        lambda names: PreprocessorTransformer(continuous=names).fit(found[["a", "b"]]),
        lambda names: WorkflowTransformer([{"min_max": {"column": "a"}}], outputs=names).fit(found),
    ]
    for call, role in zip(calls, ("categorical", "continuous", "outputs"), strict=True):
        with pytest.raises(DataError, match=rf"{role} is a list of names, found 'ab'\. Write \['ab'\]"):
            call("ab")
        call(None)
    for names in (["a"], ("a",), pd.Index(["a"]), np.array(["a"])):
        assert "a" in calls[0](names).categories_
        assert "a" in calls[1](names).preprocessor_.schema.names("continuous")
        assert calls[2](names).columns_out_ == ["a"]


def test_columns_that_are_left_out_are_warned_of(rows, sold, caplog):
    """What alone tells the label is none of them: X is what its maker chose."""
    told = rows.assign(lag=b"1h", one=1, copy=sold)
    model = GigabatchClassifier(random_state=0, train={"epochs": 1}).fit(told, sold)
    assert set(model.categories_) >= {"city", "copy"}
    assert "left out lag (the recipe does not read columns of type binary" in caplog.text
    assert "one (one value alone, 1). To keep a column name it under categorical or continuous." in caplog.text


def test_a_fraction_or_weights_that_leave_nothing_are_refused(rows, sold):
    with pytest.raises(ValueError, match=r"between 0 and 1, found 1.5"):
        GigabatchClassifier(validation_fraction=1.5).fit(rows, sold)
    with pytest.raises(ValueError, match=r"(?i)weights"):
        GigabatchClassifier().fit(rows, sold, np.zeros(len(rows)))


def test_the_preprocessor_transformer_gives_what_the_preprocessor_does(rows):
    known = rows[["city", "price"]]
    schema = Schema((Column("city", "categorical", "string"), Column("price", "continuous", "float32")), ())
    typed = known.astype({"price": "float32"})
    expected = Preprocessor(schema).fit([typed]).transform(typed)
    made = PreprocessorTransformer().fit(known)
    pd.testing.assert_frame_equal(made.transform(known), expected)
    assert made.get_feature_names_out().tolist() == expected.columns.tolist()
    with pytest.raises(DataError, match="column 'seen' holds dates or lists"):
        PreprocessorTransformer().fit(rows)


def test_transformers_work_within_pipelines_and_column_transformers(rows, sold):
    numbers = make_pipeline(PreprocessorTransformer(), LogisticRegression()).fit(rows[["city", "price"]], sold)
    assert numbers.predict(rows[["city", "price"]]).shape == (200,)
    parts = {"date_parts": {"column": "seen", "parts": ["month"], "prefix": "seen"}}
    both = make_column_transformer(
        (PreprocessorTransformer({"city": "string"}), ["city", "price"]),
        (WorkflowTransformer([parts], outputs=["seen_month"]), ["seen"]),
        verbose_feature_names_out=False,
    ).set_output(transform="pandas")
    found = both.fit_transform(rows)
    assert found.columns.tolist() == ["city", "price", "price_na", "seen_month"]
    assert found["seen_month"].tolist() == rows["seen"].dt.month.tolist()
    copied = clone(both).set_params(workflowtransformer__outputs=["seen_month"])
    pd.testing.assert_frame_equal(copied.fit_transform(rows), found)


@pytest.mark.filterwarnings("ignore:X (has|does not have valid) feature names:UserWarning")
@pytest.mark.parametrize("names", [["a", "b"], ["x1", "x0"]])
@pytest.mark.parametrize(
    "given",
    [
        GigabatchRegressor(random_state=0, train={"epochs": 1}),
        PreprocessorTransformer(),
        WorkflowTransformer([{"normalize": {"column": "x0"}}]),
    ],
    ids=["estimator", "preprocessor", "workflow"],
)
def test_columns_without_names_go_by_their_places(given, names):
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(100, 2)) * [1, 50], columns=names)
    matrix, label = frame.to_numpy(), frame.sum(axis=1)
    step = {"steps": [{"normalize": {"column": names[1]}}]} if isinstance(given, WorkflowTransformer) else {}
    for seen, other in ((frame, matrix), (matrix, frame)):
        fitted = clone(given).set_params(**(step if seen is frame else {})).fit(seen, label)
        use = fitted.predict if hasattr(fitted, "predict") else fitted.transform
        assert np.array_equal(np.asarray(use(other)), np.asarray(use(seen)))
    with pytest.raises(ValueError, match="2 features"):
        use(matrix[:, :1])


@pytest.mark.parametrize("fit_first", [False, True])
@pytest.mark.parametrize("given", [PreprocessorTransformer(), WorkflowTransformer()], ids=["preprocessor", "workflow"])
def test_rows_of_numbered_columns_keep_their_index_beside_those_of_others(given, fit_first):
    """Without it a ColumnTransformer, which puts frames beside each other by index, mixed up rows without a word."""
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(20, 2)), index=np.arange(20)[::-1])
    both = ColumnTransformer([("ours", given, [0]), ("other", "passthrough", [1])]).set_output(transform="pandas")
    found = both.fit(frame).transform(frame) if fit_first else both.fit_transform(frame)
    assert found.index.equals(frame.index)
    assert found.iloc[:, -1].tolist() == frame[1].tolist()
    assert found.iloc[:, 0].rank().tolist() == frame[0].rank().tolist()


@pytest.mark.parametrize("library", [pa.table, lambda frame: pa.RecordBatch.from_pandas(frame)], ids=["table", "batch"])
def test_columns_of_arrow_in_another_order_are_refused(library):
    frame = pd.DataFrame({"a": [1.0, 2.0, 4.0], "b": [5.0, 3.0, 9.0]})
    fitted = PreprocessorTransformer().fit(library(frame))
    assert fitted.transform(library(frame)).equals(fitted.transform(frame))
    with pytest.raises(ValueError, match="same order"):
        fitted.transform(library(frame[["b", "a"]]))


def test_an_encoding_of_the_label_leaves_a_rows_own_label_out(rows):
    late = np.arange(200) % 2
    steps = [
        {"folded_target_encoding": {"by": ["city"], "targets": ["y"], "fold_key": "day", "smoothing": 0.0}}
    ]  # fmt: skip
    frame = rows[["city"]].assign(day=np.arange(200) // 7)
    made = WorkflowTransformer(steps, outputs=["y_encoded_by_city"])
    found = made.fit_transform(frame, late)
    workflow = Workflow.from_steps(steps, labels=["y"])
    (expected,) = workflow.fit_transform([frame.assign(y=late)])
    assert found["y_encoded_by_city"].tolist() == expected["y_encoded_by_city"].tolist()
    served = made.transform(frame)["y_encoded_by_city"]
    means = pd.Series(late).groupby(frame["city"]).mean()
    assert np.allclose(served, frame["city"].map(means))
    assert not np.allclose(found["y_encoded_by_city"], served)


def test_a_column_called_as_the_label_is_a_feature_unless_steps_read_it():
    x = pd.DataFrame({"x": [1.0, 2.0, 3.0], "y": [10.0, 20.0, 30.0]})
    for labels in (None, [0, 1, 0]):
        made = WorkflowTransformer([{"min_max": {"column": "x"}}]).fit(x, labels)
        assert made.get_feature_names_out().tolist() == ["x", "y"]
        assert made.transform(x)["y"].tolist() == [10.0, 20.0, 30.0]
        assert made.fit_transform(x, labels).columns.tolist() == ["x", "y"]
    assert WorkflowTransformer([{"min_max": {"column": "y"}}]).fit_transform(x)["y"].tolist() == [0.0, 0.5, 1.0]
    made = WorkflowTransformer([{"min_max": {"column": "x", "output": "y"}}]).fit(x[["x"]], [0, 1, 0])
    assert made.transform(x[["x"]])["y"].tolist() == [0.0, 0.5, 1.0]


@pytest.mark.parametrize("values", [[0, 1, 1, 0], [0.5, None, 2.0, 1], [*"abaa"], [True, False, False, True]])
@pytest.mark.parametrize("nullable", [False, True])
def test_labels_that_x_still_holds_are_no_feature(values, nullable):
    """X was the frame that y was taken from, and a model behind found its own labels among the features."""
    column = pd.Series(values).convert_dtypes() if nullable else pd.Series(values)
    x = pd.DataFrame({"x": [1.0, 2.0, 4.0, 3.0], "y": column}, index=[3, 1, 0, 2])
    x["y"] = column.to_numpy() if not nullable else column.array
    steps = [{"min_max": {"column": "x"}}]
    for labels in (x["y"], pd.Series(values).to_numpy(), x["y"].tolist(), x[["y"]]):
        for fit in (WorkflowTransformer(steps).fit, WorkflowTransformer(steps).fit_transform):
            with pytest.raises(DataError, match=r"column 'y' of X holds the labels.*label='target'"):
                fit(x, labels)
    assert WorkflowTransformer(steps, label="target").fit(x, x["y"]).columns_out_ == ["x", "y"]
    assert WorkflowTransformer(steps).fit(x, [5, 6, 7, 8]).columns_out_ == ["x", "y"]
    assert WorkflowTransformer(steps).fit(x[["x"]], x["y"]).columns_out_ == ["x"]


def test_a_label_and_a_column_of_one_name_are_refused_where_steps_read_it():
    x = pd.DataFrame({"city": list("aabb"), "day": [0, 1, 2, 3], "y": [10.0, 20.0, 30.0, 40.0]})
    steps = [{"folded_target_encoding": {"by": ["city"], "targets": ["y"], "fold_key": "day", "smoothing": 0.0}}]
    with pytest.raises(DataError, match=r"'y'.* column of X and the label.*label='target'"):
        WorkflowTransformer(steps).fit(x, [0, 1, 0, 1])
    steps[0]["folded_target_encoding"]["targets"] = ["target"]
    made = WorkflowTransformer(steps, label="target").fit(x, [0, 1, 1, 1]).transform(x)
    assert made["target_encoded_by_city"].tolist() == [0.5, 0.5, 1.0, 1.0]
    assert made["y"].tolist() == x["y"].tolist()


def test_steps_that_change_the_rows_are_refused(rows):
    with pytest.raises(DataError, match="changes the rows, and y would not follow"):
        WorkflowTransformer([{"drop_nulls": {"columns": ["price"]}}]).fit(rows)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"train": {"epochs": -3}}, r"^train\.epochs: .*greater"),
        ({"train": {"epoch": 3}}, "unknown key 'train.epoch'. Did you mean 'train.epochs'"),
        ({"preprocess": {"min_cnt": 3}}, "unknown key 'preprocess.min_cnt'"),
        ({"model_settings": {"layer": [3]}}, "unknown key 'model.layer'"),
    ],
)
def test_a_setting_that_is_none_is_a_value_error_with_its_name(rows, sold, settings, said):
    with pytest.raises(ValueError, match=said):
        GigabatchClassifier(**settings).fit(rows, sold)


@pytest.mark.parametrize("labels", [pd.date_range("2024-01-01", periods=200), ["a", "b"] * 100])
def test_a_regression_of_what_is_no_number_is_refused_plainly(rows, labels):
    with pytest.raises(ValueError, match=r"GigabatchRegressor: y holds .*no number.* take GigabatchClassifier"):
        GigabatchRegressor().fit(rows, labels)


@pytest.mark.parametrize("members", [1, 2])
def test_labels_far_from_0_are_learnt_as_those_near_it(members, tmp_path):
    """At 2^30 float32 keeps one number in 64, and float64 each of these labels, which are multiples of 2^-10."""
    random = np.random.default_rng(0)
    x = random.normal(size=(400, 3))
    near = np.round((3 * x[:, 0] - 2 * x[:, 1]) * 1024) / 1024
    near -= np.round(near.mean() * 1024) / 1024
    train = {"epochs": 5, "batch_size": 64, "ensemble": members}
    found, expected = (GigabatchRegressor(random_state=0, train=train).fit(x, near + far) for far in (2.0**30, 0.0))
    np.testing.assert_allclose(found.predict(x) - 2.0**30, expected.predict(x), atol=1e-3)
    found.bundle_.save(tmp_path)
    read = load_bundle(tmp_path, "cpu")
    np.testing.assert_array_equal(
        read.predict_raw(pd.DataFrame(x, columns=found.numbers_)).iloc[:, 0], found.predict(x)
    )
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(found)).predict(x), found.predict(x))


@pytest.mark.parametrize(
    "given",
    [
        {"train": {"losses": {"y": {"kind": "poisson"}}}},
        {"model": "tabular", "model_settings": {"output_range": [0, 2e9]}},
    ],
)
def test_labels_far_from_0_that_are_bounded_there_are_refused(given):
    x = np.arange(100.0)[:, None]
    with pytest.raises(DataError, match=r"target 'y': float32, .* moves values by up to 32.*Subtract a constant"):
        GigabatchRegressor(**given).fit(x, 1e9 + x[:, 0])


def test_the_preprocessor_transformer_cleans_as_the_draft_says(rows):
    texts = rows["price"].round(2).astype("str") + " €"
    known = pd.DataFrame(
        {"city": rows["city"].where(rows.index % 2 == 0, rows["city"].str.upper() + " "), "price": texts}
    )
    known["ratio"] = np.where(rows.index % 50 == 0, np.inf, rows["price"])
    plain = pd.DataFrame({"city": rows["city"].str.lower(), "price": rows["price"].round(2)})
    highest = rows["price"][rows.index % 50 != 0].max()
    plain["ratio"] = rows["price"].where(rows.index % 50 != 0, highest)
    made, expected = PreprocessorTransformer().fit(known), PreprocessorTransformer().fit(plain)
    pd.testing.assert_frame_equal(made.transform(known), expected.transform(plain))


def test_a_grid_over_epochs_and_rates_keeps_the_best():
    x, y = make_classification(120, n_features=4, random_state=0)
    grid = {"train": [{"epochs": epochs, "lr_max": rate} for epochs in (1, 20) for rate in (1e-5, 0.02)]}
    search = GridSearchCV(GigabatchClassifier(random_state=0, model="lr"), grid, cv=2).fit(x, y)
    assert search.best_params_["train"] == {"epochs": 20, "lr_max": 0.02}


def test_an_ensembles_members_are_trainings_of_their_own_whose_mean_is_predicted(rows, sold):
    settings = {"epochs": 3, "label_smoothing": 0.1, "ensemble": 1}
    alone = GigabatchClassifier(random_state=0, train=settings).fit(rows, sold)
    both = GigabatchClassifier(random_state=0, train=settings | {"ensemble": 2}).fit(rows, sold)
    first, second = both.bundle_.model.models
    assert all(
        torch.equal(first.state_dict()[name], tensor) for name, tensor in alone.bundle_.model.state_dict().items()
    )
    alone.bundle_.model.load_state_dict(second.state_dict())
    of_second = alone.predict_proba(rows)
    of_first = GigabatchClassifier(random_state=0, train=settings).fit(rows, sold).predict_proba(rows)
    assert not np.allclose(of_first, of_second, atol=1e-3)
    assert np.allclose(both.predict_proba(rows), (of_first + of_second) / 2, atol=1e-5)
    assert sorted({point["member"] for point in both.curve_}) == [0, 1]
    again = pickle.loads(pickle.dumps(both))
    assert np.array_equal(again.predict_proba(rows), both.predict_proba(rows))
    assert len(both.bundle_.info["members"]["seeds"]) == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("negatives", {}),
        ("codistill", {}),
        ("start_from", "current"),
        ("window", {}),
        ("new_rows", "unseen"),
        ("sums_kept", 0.5),
        ("changed", "cold"),
        ("tables", "sharded"),
        ("gradients", {"compress": "dct"}),
        ("residency", "stream"),
        ("checkpoint_every_steps", 5),
    ],
)
def test_a_setting_that_cannot_act_in_memory_is_refused_by_name(rows, sold, name, value):
    with pytest.raises(ConfigError, match=rf"^train\.{name}: it has no effect in GigabatchClassifier: .* Leave it out"):
        GigabatchClassifier(train={name: value}).fit(rows, sold)


def test_every_setting_of_train_acts_or_is_refused():
    """What a new setting does here is to be decided; these act, as trainings in memory show."""
    acting = {
        "epochs", "batch_size", "optimizer", "optimizer_settings", "lr_max", "weight_decay", "schedule",
        "schedule_settings", "precision", "accumulate_steps", "max_grad_norm", "ema_decay", "patience", "select",
        "select_by", "cuda_graph", "kernels", "compile", "losses", "calibration", "prior", "dropout_schedule",
        "label_smoothing", "ensemble", "ensemble_by",
    }  # fmt: skip
    assert acting | WITHOUT_EFFECT.keys() == TrainSettings.model_fields.keys()
    assert not acting & WITHOUT_EFFECT.keys()


def test_a_setting_that_says_what_holds_anyway_is_taken(rows, sold):
    settings = {"negatives": None, "start_from": None, "residency": "auto", "epochs": 1}
    assert GigabatchClassifier(train=settings).fit(rows, sold).classes_.tolist() == ["no", "yes"]


def storages(values: list, dtype: str, arrow: pa.DataType) -> dict[str, object]:
    """Labels as pandas keeps them otherwise than numpy."""
    nullable = pd.Series(values, dtype=dtype)
    return {
        "nullable": nullable, "arrow": nullable.astype(pd.ArrowDtype(arrow)), "index": pd.Index(nullable),
        "array": nullable.array,
    }  # fmt: skip


@pytest.mark.parametrize("storage", ["nullable", "arrow", "index", "array", "frame"])
@pytest.mark.parametrize(
    ("classes", "dtype", "arrow"),
    [
        ([2**60, 2**60 + 1, 2**61], "Int64", pa.int64()),
        ([2**63, 2**63 + 1, 2**63 + 5], "UInt64", pa.uint64()),
        ([False, True, True], "boolean", pa.bool_()),
        (["b", "a", "a"], "string", pa.string()),
    ],
)
def test_labels_of_pandas_own_types_are_those_of_numpy(classes, dtype, arrow, storage):
    """No two whole numbers are made one by a float between."""
    labels = classes * 10
    found = storages(labels, dtype, arrow)
    y = found["nullable"].to_frame() if storage == "frame" else found[storage]
    x = np.arange(30.0)[:, None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataConversionWarning)  # as scikit-learn does of a frame for a label
        model = GigabatchClassifier("lr", random_state=0, train={"epochs": 1}).fit(x, y)
        plain = GigabatchClassifier("lr", random_state=0, train={"epochs": 1}).fit(x, np.array(labels))
        assert model.classes_.tolist() == sorted(set(classes))
        assert [type(label) for label in model.classes_.tolist()] == [type(classes[0])] * len(set(classes))
        right = np.mean([one == other for one, other in zip(model.predict(x).tolist(), labels, strict=True)])
        assert model.score(x, y) == pytest.approx(right)
    assert np.array_equal(model.predict_proba(x), plain.predict_proba(x))


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("coded", [False, True])
def test_labels_in_an_array_of_arrow_are_those_of_numpy(rows, sold, coded, chunked):
    def stored(values):
        found = pa.array(values).dictionary_encode() if coded else pa.array(values)
        return pa.chunked_array([found]) if chunked else found

    given = GigabatchClassifier(random_state=0, train={"epochs": 1})
    expected, found = clone(given).fit(rows, sold), clone(given).fit(rows, stored(sold))
    assert found.classes_.tolist() == expected.classes_.tolist()
    assert np.array_equal(found.predict_proba(rows), expected.predict_proba(rows))
    assert found.score(rows, stored(sold)) == expected.score(rows, sold)
    with pytest.raises(ValueError, match="null"):
        given.fit(rows, stored([*sold[:1], None, *sold[2:]]))


@pytest.mark.parametrize("chunked", [False, True])
def test_codes_of_a_null_label_are_null_to_steps(chunked):
    label = pa.array([1.0, 0.0, None, 1.0]).dictionary_encode()
    given = pa.chunked_array([label]) if chunked else label
    step = {"by": ["city"], "targets": ["y"], "fold_key": "day", "smoothing": 0.0}
    made = WorkflowTransformer([{"folded_target_encoding": step}], outputs=["y_encoded_by_city"])
    frame = pd.DataFrame({"city": ["Oslo", "Bonn", "Oslo", "Oslo"], "day": [1, 2, 3, 4]})
    assert made.fit(frame, given).transform(frame)["y_encoded_by_city"].tolist() == [1, 0, 1, 1]


@pytest.mark.parametrize("storage", ["nullable", "arrow", "index", "array"])
def test_targets_of_pandas_own_types_are_those_of_numpy(storage):
    values, x = [2**53 + 1000 * k for k in range(30)], np.arange(30.0)[:, None]
    y = storages(values, "Int64", pa.int64())[storage]
    found, plain = [
        GigabatchRegressor("lr", random_state=0, train={"epochs": 2}).fit(x, labels).predict(x)
        for labels in (y, np.array(values))
    ]
    assert np.array_equal(found, plain)


@pytest.mark.parametrize(("dtype", "arrow"), [("Int64", pa.int64()), ("boolean", pa.bool_())])
@pytest.mark.parametrize("storage", ["nullable", "arrow", "index", "array"])
def test_a_null_label_of_pandas_own_types_is_refused(dtype, arrow, storage):
    y = storages([0, 1, None] * 10, dtype, arrow)[storage]
    with pytest.raises(ValueError, match="contains NaN, infinity or a null"):
        GigabatchClassifier("lr").fit(np.arange(30.0)[:, None], y)


@pytest.mark.parametrize("name", ["price", "y"])
def test_the_loss_of_the_target_is_set_by_the_name_y(rows, name):
    """Also where a column of X is called y. A quantile of 0.9 lies above nine of ten targets."""
    x = pd.DataFrame({name: np.arange(200) % 3 / 2, "other": rows["price"]})
    labels = np.random.default_rng(1).normal(size=200)
    loss = {"losses": {"y": {"kind": "quantile", "tau": 0.9}}}
    model = GigabatchRegressor("lr", random_state=0, train={"epochs": 60, "lr_max": 0.05} | loss).fit(x, labels)
    assert model.bundle_.info["loss"] == "quantile(tau=0.9) in deviations"
    assert 0.8 < (labels < model.predict(x)).mean() < 0.97
    assert [target.name for target in model.bundle_.schema.targets] == ["y" if name != "y" else "__label__"]
    with pytest.raises(ConfigError, match=r"^train\.losses: 'label' is no target. Targets: y"):
        GigabatchRegressor(train={"losses": {"label": {}}}).fit(x, labels)


@pytest.mark.parametrize("names", [["__weight__", "x"], ["y", "__label__"]])
def test_columns_called_as_the_estimators_own_are_features(rows, sold, names):
    """The first alone tells the label."""
    x = pd.DataFrame({names[0]: (sold == "yes") * 1.0, names[1]: np.arange(len(sold)) % 7.0})
    model = GigabatchClassifier("lr", random_state=0, train={"epochs": 60, "lr_max": 0.05})
    model.fit(x, sold, sample_weight=np.arange(len(sold)) % 2 + 1.0)
    assert model.score(x, sold) == 1.0
    assert set(model.bundle_.schema.names("continuous")) == set(names)


@pytest.mark.parametrize(
    ("classes", "given"),
    [
        (["Small", "large", "mid"], {"large": 5, "Small": 1, "mid": 2}),
        (["Small", "large", "mid"], [1, 5, 2]),
        ([1, 2, 10], {2: 5, 1: 1, 10: 2}),
        ([1.0, 2.0, 10.0], {2: 5, 1.0: 1, 10: 2}),
        (["no", "yes"], {"yes": 5, "no": 1}),
        ([1, 2], {2: 5, 1: 1}),
        ([False, True], {True: 5, False: 1}),
    ],
)
def test_class_weights_are_by_the_labels_of_y(rows, classes, given):
    labels = np.array(classes)[np.arange(len(rows)) % len(classes)]
    model = GigabatchClassifier("lr", train={"epochs": 1, "losses": {"y": {"class_weights": given}}}, random_state=0)
    model.fit(rows, labels)
    assert model.classes_.tolist() == classes
    assert f"class weights {'1, 5, 2' if len(classes) == 3 else '1, 5'})" in model.bundle_.info["loss"]


@pytest.mark.parametrize("given", [{"large": 5, "Small": 1}, {0: 1, 1: 5, 2: 1}, [1, 2]])
def test_class_weights_that_name_not_each_label_are_refused_with_the_labels(rows, given):
    labels = np.array(["Small", "large", "mid"])[np.arange(len(rows)) % 3]
    with pytest.raises(ConfigError, match=r"^train\.losses\.y, .*'Small', 'large', 'mid'"):
        GigabatchClassifier(train={"losses": {"y": {"class_weights": given}}}).fit(rows, labels)


@pytest.mark.parametrize("settings", [{"calibration": "temperature"}, {"patience": 3}, {"select": "best"}])
def test_what_needs_rows_that_are_not_trained_on_is_refused_where_there_are_none(rows, sold, settings):
    ((name, value),) = settings.items()
    said = rf"^train\.{name}={value}: .*validation_fraction=0\.1 of 30 rows leaves none: 5 are the least"
    with pytest.raises(ConfigError, match=said):
        GigabatchClassifier(train=settings).fit(rows.head(30), sold[:30])
    GigabatchClassifier(train=settings | {"epochs": 1}).fit(rows, sold)


def test_settings_of_a_model_that_is_not_named_are_of_the_one_that_the_rows_choose(rows):
    many, labels = pd.concat([rows] * 5, ignore_index=True), np.arange(1000) % 2
    model = GigabatchClassifier(random_state=0, train={"epochs": 1}, model_settings={"layers": [16]}).fit(many, labels)
    assert [type(member).__name__ for member in model.bundle_.model.models] == ["TabM"] * 4
    assert {member.settings.layers for member in model.bundle_.model.models} == {(16,)}
    assert model.bundle_.preprocessor.settings.scale == "robust"
    named = GigabatchClassifier("tabular", {"layers": [16]}, train={"epochs": 1}, random_state=0).fit(many, labels)
    assert named.bundle_.preprocessor.settings.scale != "robust"
    with pytest.raises(ConfigError, match=r"model\.batch_norm: tabm has no such setting.*model='tabular'"):
        GigabatchClassifier(model_settings={"batch_norm": False}).fit(many, labels)
    with pytest.raises(ConfigError, match=r"model_settings\.kind: .*model='lr'"):
        GigabatchClassifier(model_settings={"kind": "lr"}).fit(many, labels)


@pytest.mark.parametrize("dtype", ["float64", "object"])
def test_the_preprocessor_transformer_takes_floats_for_the_text_with_a_decimal_comma_that_they_stand_for(dtype):
    weights = pd.Series(np.random.default_rng(2).uniform(0.2, 9, 200).round(3))
    texts = pd.DataFrame({"weight": [f"{value:.3f}".replace(".", ",") for value in weights]})
    made = PreprocessorTransformer().fit(texts)
    found = made.transform(pd.DataFrame({"weight": weights.astype(dtype)}))
    pd.testing.assert_frame_equal(found, made.transform(texts))


@pytest.mark.parametrize(
    ("classes", "named"),
    [
        ([1, 2, 3], ["y_1", "y_2", "y_3"]),
        ([3.0, 7.0, 10.0], ["y_3", "y_7", "y_10"]),
        (["blue", "green", "red"], ["y_blue", "y_green", "y_red"]),
    ],
)
def test_a_saved_bundle_names_classes_by_their_labels(rows, classes, named, tmp_path):
    model = GigabatchClassifier("lr", train={"epochs": 1}, random_state=0)
    model.fit(rows, np.array(classes)[np.arange(len(rows)) % 3])
    model.bundle_.save(tmp_path)
    bundle = load_bundle(tmp_path)
    found = bundle.predict_raw(rows)
    assert list(found.columns) == named
    # float32 probabilities of the bundle are brought to a sum of 1 in float64
    assert np.allclose(found.to_numpy(), model.predict_proba(rows), atol=1e-6)
    assert RowScorer(bundle)([null_row(bundle)], raw=False).keys() == set(named)
    assert bundle.positive == {}


@pytest.mark.parametrize(
    ("classes", "second", "name"),
    [
        (["churned", "stays"], "stays", "y"),
        ([1, 2], "2", "y"),
        ([0.0, 1.0], "1", "y"),
        ([False, True], "True", "y"),
        (["churned", "stays"], "stays", "__label__"),
    ],
)
def test_a_saved_bundle_says_of_which_label_its_probability_is(rows, classes, second, name, tmp_path):
    labels = np.array(classes)[(rows["price"] > 0).astype(int)]
    rows = rows.rename(columns={"price": "y"}) if name != "y" else rows
    model = GigabatchClassifier("lr", train={"epochs": 30}, random_state=0).fit(rows, labels)
    model.bundle_.save(tmp_path)
    bundle = load_bundle(tmp_path)
    assert bundle.positive == {name: second}
    found = bundle.predict_raw(rows)[name].to_numpy()
    is_second = np.array([str(label) for label in labels.tolist()]) == str(classes[1])
    assert found[is_second].mean() > 0.5 > found[~is_second].mean()
    assert ("of 'stays'" in repr(bundle)) == (second == "stays")
    assert GigabatchRegressor("lr", train={"epochs": 1}).fit(rows, is_second).bundle_.positive == {}


def test_a_saved_bundle_is_served_by_its_folder(rows, sold, tmp_path):
    model = GigabatchClassifier("lr", random_state=0, train={"epochs": 1}).fit(rows, sold)
    model.bundle_.save(tmp_path / "churn")
    served = load_served(tmp_path / "churn")
    given = {"city": "Oslo", "price": 1.5, "seen": "2024-03-01"}
    expected = model.predict_proba(pd.DataFrame([given]).assign(seen=pd.Timestamp("2024-03-01")))[0, 1]
    (found,) = served.scorer([given], raw=True)["y"]
    assert found == pytest.approx(expected, rel=1e-5)
    before = signature(tmp_path / "churn")
    GigabatchClassifier("lr", random_state=1, train={"epochs": 1}).fit(rows, sold).bundle_.save(tmp_path / "churn")
    assert signature(tmp_path / "churn") != before
    (tmp_path / "churn" / "weights.safetensors").write_bytes(b"")
    with pytest.raises(BundleError, match=r"damaged.*save it again where it was saved by hand"):
        load_served(tmp_path / "churn")


@pytest.mark.parametrize("broken", ["labels", "columns", "training"])
def test_a_fit_that_fails_keeps_the_last_one(rows, sold, broken, monkeypatch):
    """`classes_` were those of the fit that failed, and the model that of before: it predicted labels of neither."""
    model = GigabatchClassifier("lr", train={"epochs": 1}, random_state=0).fit(rows, sold)
    expected = model.predict(rows)
    before = set(vars(model))
    others = np.where(sold == sold[0], "left", "right")
    if broken == "training":
        monkeypatch.setattr("gigabatch.pipeline.python.estimators.pack", lambda *given: 1 / 0)
    given, error = {
        "labels": ((rows, np.zeros(len(rows))), ValueError),
        "columns": ((rows[[]], others), ValueError),
        "training": ((rows.assign(more=1.0), others), ZeroDivisionError),
    }[broken]
    with pytest.raises(error):
        model.fit(*given)
    assert set(vars(model)) == before
    assert model.predict(rows).tolist() == expected.tolist()


def test_transformers_whose_fit_fails_keep_the_last_one(rows):
    cases = [
        (WorkflowTransformer([{"min_max": {"column": "price"}}]), rows.drop(columns="price")),
        (PreprocessorTransformer(), rows),  # which holds dates
    ]
    for model, broken in cases:
        frame = rows[["city", "price"]]
        expected = model.fit(frame).transform(frame)
        with pytest.raises(DataError):
            model.fit(broken)
        pd.testing.assert_frame_equal(model.transform(frame), expected)
