"""Bundles: what was saved predicts the same, for a row alone or among many, and damage is found."""

import copy
import json
import pickletools
import shutil
import struct

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.encoding.settings import PreprocessorSettings
from gigabatch.features.errors import DataError
from gigabatch.features.schema import Column, Schema, Target
from gigabatch.features.workflow.workflow import Workflow
from gigabatch.models.click.fm import FactorizationMachine
from gigabatch.models.inputs import EntityColumns, ListInputs, ModelInputs
from gigabatch.models.model import SCORE_ATOL, SCORE_RTOL, TargetScale
from gigabatch.models.shelf import MODELS, ModelSpec, model_class
from gigabatch.models.tabular.tabular import TabularModel, TabularSettings
from gigabatch.pipeline.bundle import (
    BLOCK_ROWS,
    AsAllocated,
    Bundle,
    BundleError,
    load_bundle,
    model_outputs,
    target_loss,
)
from gigabatch.pipeline.stages.stages import pack
from tests.examples import examples
from tests.pipeline.read_only import unreadable
from tests.pipeline.tiny_recipe import day_of_rows

MANY = 200_000


@pytest.fixture(autouse=True)
def _one_thread():
    """Not here: how work is shared among threads may show in a score's last bits and no further."""


@pytest.fixture(scope="module")
def bundle(trained):
    return trained[1].bundle()


@pytest.fixture(scope="module")
def many() -> pd.DataFrame:
    return day_of_rows(50, MANY)


@pytest.fixture(scope="module")
def scores(bundle, many) -> np.ndarray:
    return bundle.predict(many)["clicked"].to_numpy()


@pytest.fixture(scope="module")
def words(bundle, many) -> np.ndarray:
    """What the model is given of each row: ids and the bits of floats."""
    return bundle.preprocessor.pack(many, targets=False)


@pytest.fixture
def folder(trained, tmp_path):
    """A copy of the bundle's folder, to be damaged."""
    return shutil.copytree(trained[1].path / "model", tmp_path / "model")


def assert_scores(found: pd.Series | np.ndarray, expected: np.ndarray) -> None:
    """float32, and equal to the expected ones within the tolerance that is promised."""
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=SCORE_RTOL, atol=SCORE_ATOL)


def test_a_loaded_bundle_predicts_what_the_saved_one_did(bundle, many, scores, tmp_path):
    bundle.save(tmp_path / "again")
    loaded = load_bundle(tmp_path / "again")
    assert loaded.info == bundle.info
    assert (loaded.model.inputs, loaded.model.settings) == (bundle.model.inputs, bundle.model.settings)
    assert np.array_equal(loaded.predict(many)["clicked"].to_numpy().view(np.int32), scores.view(np.int32))


def test_predictions_are_the_models_outputs_on_the_packed_rows(bundle, many, scores):
    """The way of training (pack, unpack, forward) and the way of scoring give the same probability."""
    rows = many.head(1000)
    table = pack(bundle.preprocessor, rows)
    batch = table.unpack(table.words)
    with torch.no_grad():
        expected = torch.sigmoid(bundle.model.eval()(batch.ids, batch.floats)[:, 0].double())
    assert scores[:1000] == pytest.approx(expected.numpy(), abs=1e-6)
    assert scores.min() > 0
    assert scores.max() < 1


@pytest.mark.parametrize("training", [True, False])
def test_outputs_leave_each_part_of_the_model_in_its_own_mode(bundle, training):
    model = copy.deepcopy(bundle.model).train(training)
    last = list(model.modules())[-1]
    last.train(not training)  # as a part that is frozen
    before = [part.training for part in model.modules()]
    seen = []
    hook = last.register_forward_pre_hook(lambda part, _: seen.append(part.training))
    table = pack(bundle.preprocessor, day_of_rows(50, 10))
    batch = table.unpack(table.words)
    assert len(list(model_outputs(model, batch.ids, batch.floats))) == 1
    hook.remove()
    assert seen == [False]
    assert [part.training for part in model.modules()] == before
    assert set(before) == {True, False}


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, MANY - 1))
def test_a_row_has_the_same_input_bits_and_score_alone_among_seven_and_among_many(
    bundle, many, scores, words, position
):
    start = min(position, MANY - 7)
    alone, seven = many.iloc[[position]], many.iloc[start : start + 7]
    assert_scores(bundle.predict(alone)["clicked"], scores[[position]])
    assert_scores(bundle.predict(seven)["clicked"], scores[start : start + 7])
    assert np.array_equal(bundle.preprocessor.pack(alone, targets=False), words[[position]])
    assert np.array_equal(bundle.preprocessor.pack(seven, targets=False), words[start : start + 7])
    ids, floats = bundle.online()(alone.to_dict("records")[0])
    assert np.array_equal(np.concatenate([ids, floats.view(np.int32)]), words[position])


@pytest.mark.parametrize("rows", [1, 128, BLOCK_ROWS - 1, BLOCK_ROWS, BLOCK_ROWS + 1, 2 * BLOCK_ROWS])
def test_scores_do_not_depend_on_where_blocks_end(bundle, many, scores, rows):
    assert_scores(bundle.predict(many.tail(rows))["clicked"], scores[-rows:])


def test_predictions_keep_the_index_and_need_no_label(bundle, many):
    rows = many.iloc[[5, 3, 99]].drop(columns=["clicked", "at", "row", "session"])
    found = bundle.predict(rows)
    assert list(found.index) == [5, 3, 99]
    assert list(found.columns) == ["clicked"]
    assert found["clicked"].dtype == "float32"


def test_no_rows_give_no_predictions(bundle, many):
    found = bundle.predict(many.head(0))
    assert (len(found), list(found.columns)) == (0, ["clicked"])


def test_order_of_columns_and_further_columns_do_not_matter(bundle, many, scores):
    rows = many.head(9)[list(many.columns[::-1])].assign(unrelated="x")
    assert_scores(bundle.predict(rows)["clicked"], scores[:9])


def test_an_unseen_category_and_a_new_null_are_scored(bundle, many):
    """`signal` had no null and `city` no Rome at fit: the first counts as the median, the second as unseen."""
    rows = many.head(2).copy()
    rows["signal"] = [np.nan, bundle.preprocessor.fills["signal"].value]
    rows.loc[1, ["city", "product", "store", "gap", "noise", "other"]] = rows.loc[0]
    found = bundle.predict(rows)["clicked"].to_numpy()
    assert np.isfinite(found).all()
    assert_scores(found[:1], found[1:])
    strange = many.head(3).assign(city=["Rome", "Kyiv", None])
    ids = bundle.preprocessor.transform(strange, targets=False)["city"].tolist()
    assert ids == [2, 2, 1]
    assert np.isfinite(bundle.predict(strange)["clicked"]).all()


def test_a_column_of_which_no_value_is_known_is_named(caplog):
    """A file's `3.0` is text, a frame's 3.0 the number 3, so a frame read from the same file knew no category."""
    columns = Column("shop", "categorical", "string"), Column("clicked", "target", "float32")
    rows = pd.DataFrame({"shop": ["3.0", "4.0", None] * 10, "clicked": [1.0, 0.0, 1.0] * 10})
    preprocessor = Preprocessor(Schema(columns, (Target("clicked", "binary"),))).fit([rows])
    inputs = ModelInputs(num_ids=(preprocessor.tensor_schema.ids[0].num_ids,), num_floats=0)
    bundle = Bundle(preprocessor, FactorizationMachine(inputs, FactorizationMachine.Settings()), {})
    bundle.predict(rows)
    bundle.predict(rows.assign(shop=[3.0, 4.0, None] * 10).head(20))  # 14 values
    bundle.predict(rows.assign(shop=["3.0"] + ["5"] * 29))
    assert not caplog.messages
    bundle.predict(rows.assign(shop=[3.0, 4.0, None] * 10))
    (text,) = caplog.messages
    assert text.startswith("column 'shop': none of its 20 values (float64) was there in training")
    assert "'3.0', '4.0'" in text
    caplog.clear()
    bundle.workflow = Workflow([], [], {"shop": "string"}).fit([rows])
    bundle.predict_raw(rows.assign(shop=[True, False, True] * 10))
    assert caplog.messages[0].startswith("column 'shop': none of its 30 values (bool) was there in training")


def test_predict_raw_says_which_step_makes_no_column_of_a_word_that_its_fit_did_not_see():
    columns = Column("shop", "categorical", "string"), Column("clicked", "target", "float32")
    rows = pd.DataFrame({"shop": ["a", "b"], "t": ["Pool", None], "clicked": [1.0, 0.0]})
    preprocessor = Preprocessor(Schema(columns, (Target("clicked", "binary"),))).fit([rows])
    inputs = ModelInputs(num_ids=(preprocessor.tensor_schema.ids[0].num_ids,), num_floats=0)
    steps = [{"text_flags": {"column": "t", "prefix": "has_"}}, {"log": {"column": "has_wifi"}}]
    bundle = Bundle(preprocessor, FactorizationMachine(inputs, FactorizationMachine.Settings()), {})
    bundle.workflow = Workflow.from_steps(steps).fit([rows])
    with pytest.raises(DataError, match=r"^predict_raw: .*'has_wifi' not found.* of step 1 \(text_flags\) are named"):
        bundle.predict_raw(rows)


def test_raw_rows_given_to_predict_are_told_to_go_to_predict_raw():
    """Not to rename a column that steps make, which no raw rows have."""
    columns = Column("shop", "categorical", "string"), Column("logs", "continuous", "float32")
    raw = pd.DataFrame({"shop": ["a", "b"], "price": [1.0, 9.0], "clicked": [1.0, 0.0]})
    workflow = Workflow.from_steps([{"log": {"column": "price", "output": "logs"}}]).fit([raw])
    rows = workflow.transform(raw)
    schema = Schema((*columns, Column("clicked", "target", "float32")), (Target("clicked", "binary"),))
    preprocessor = Preprocessor(schema).fit([rows])
    inputs = ModelInputs(
        num_ids=(preprocessor.tensor_schema.ids[0].num_ids,), num_floats=len(preprocessor.tensor_schema.floats)
    )
    bundle = Bundle(preprocessor, FactorizationMachine(inputs, FactorizationMachine.Settings()), {})
    bundle.workflow = workflow
    assert bundle.predict_raw(raw).equals(bundle.predict(rows))
    with pytest.raises(DataError, match=r"^predict: column\(s\) 'logs' not found, which steps make .* `predict_raw`"):
        bundle.predict(raw)
    with pytest.raises(DataError, match=r"'shop' not found\. Columns there: 'logs'"):
        bundle.predict(rows[["logs"]])


def test_columns_with_far_more_nulls_than_in_training_are_named(caplog):
    """`pandas.read_csv` makes null of the word None, which was a value in training."""
    columns = [Column(name, "categorical", "string") for name in ("damage", "shop")]
    schema = Schema((*columns, Column("speed", "continuous", "float32"), Column("clicked", "target", "float32")),
                    (Target("clicked", "binary"),))  # fmt: skip
    rows = pd.DataFrame({"damage": ["None", "None", "some"] * 40, "shop": ["a", None, "b"] * 40,
                         "speed": [1.0, 2.0, np.nan] * 40, "clicked": [1.0, 0.0, 1.0] * 40})  # fmt: skip
    preprocessor = Preprocessor(schema).fit([rows])
    inputs = ModelInputs(tuple(column.num_ids for column in preprocessor.tensor_schema.ids),
                         len(preprocessor.tensor_schema.floats))  # fmt: skip
    bundle = Bundle(preprocessor, FactorizationMachine(inputs, FactorizationMachine.Settings()),
                    {"null_values": ["", "NA"]})  # fmt: skip
    bundle.predict(rows)  # a third of two columns is null, as it was
    read = rows.assign(damage=rows["damage"].replace("None", None))
    bundle.predict(read.head(28))  # 19 nulls
    bundle.predict(rows.assign(shop=[None] * 48 + ["a"] * 72))  # .40 for .33
    assert not caplog.messages
    assert sum(map(len, bundle.predict_parts([read.head(60), read.tail(60)]))) == 120
    (text,) = caplog.messages
    assert text == (
        "more is null than in training: 'damage' 67% of 120 rows (0% in training). A frame of pandas.read_csv has "
        "nulls for words such as None, which may be values here: read it with keep_default_na=False, "
        "na_values=['', 'NA']."
    )
    caplog.clear()
    bundle.predict(read.assign(speed=np.nan))
    assert "'damage' 67% of 120 rows (0% in training), 'speed' 100% of 120 rows (33% in training)" in caplog.text
    caplog.clear()
    bundle.predict(rows.assign(speed=np.nan))
    assert caplog.messages == ["more is null than in training: 'speed' 100% of 120 rows (33% in training)."]
    caplog.clear()
    labels = rows["clicked"].where(rows["shop"] != "b")
    bundle.predict(rows.assign(speed=np.nan, clicked=labels))
    assert caplog.messages == [
        "more is null than in training: 'speed' 100% of 120 rows (33% in training). 40 of the rows have no label, as "
        "none in training: nulls may come with that."
    ]
    caplog.clear()
    raw = Bundle(preprocessor, bundle.model, {}, workflow=Workflow([], (), dict.fromkeys(("damage", "shop"), "string")))
    raw.predict_raw(rows.assign(speed=np.nan, clicked=labels))
    assert "40 of the rows have no label" in caplog.text
    caplog.clear()
    preprocessor.statistics = None  # of an import: how many were null is not known
    bundle.predict(read.assign(speed=np.nan))
    assert not caplog.messages


def test_of_hundreds_of_columns_of_nulls_some_are_named(caplog):
    names = [f"x{place}" for place in range(130)]
    columns = [*(Column(name, "continuous", "float32") for name in names), Column("clicked", "target", "float32")]
    rows = pd.DataFrame(np.eye(60, 130, dtype="float32"), columns=names).assign(clicked=[0.0, 1.0] * 30)
    preprocessor = Preprocessor(Schema(tuple(columns), (Target("clicked", "binary"),))).fit([rows])
    inputs = ModelInputs((), len(preprocessor.tensor_schema.floats))
    bundle = Bundle(preprocessor, FactorizationMachine(inputs, FactorizationMachine.Settings()), {})
    bundle.predict(rows.assign(**dict.fromkeys(names, np.nan)))
    (text,) = caplog.messages
    assert text.startswith("more is null than in training: 'x0' 100% of 60 rows (0% in training), 'x1' 100%")
    assert text.endswith("'x19' 100% of 60 rows (0% in training), 110 more columns.")


def test_a_runs_folder_is_told_from_a_damaged_bundle(trained, tmp_path):
    """The folder of a whole run was said to be missing or damaged, with the advice to train again."""
    with pytest.raises(BundleError, match=r"is a run's folder: its bundle is .*model\.$") as found:
        load_bundle(trained[1].path)
    assert str(trained[1].path / "model") in str(found.value)
    with pytest.raises(BundleError, match="missing or damaged"):
        load_bundle(tmp_path)


@pytest.mark.parametrize("log", [True, False])
def test_predictions_beyond_float32_are_counted_and_named(log, caplog):
    """A log link grows without bound, and `inf` was written without a word."""
    targets = (Target("clicked", "binary"), Target("price", "regression"))
    columns = Column("x", "continuous", "float32"), Column("clicked", "target", "float32")
    schema = Schema((*columns, Column("price", "target", "float32")), targets)
    rows = pd.DataFrame({"x": np.linspace(-1, 1, 50), "clicked": [0.0, 1] * 25, "price": [2.0, 3] * 25})
    preprocessor = Preprocessor(schema).fit([rows])
    model = FactorizationMachine(
        ModelInputs((), len(preprocessor.tensor_schema.floats), 2), FactorizationMachine.Settings()
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
    model.scale_targets([TargetScale(1, 1, 0.0, 2.0, log=log)])
    bundle = Bundle(preprocessor, model, {})
    bundle.predict(rows)
    assert not caplog.messages
    far = rows.assign(x=np.where(rows["x"] > 0.95, 2000.0 if log else 3e37, rows["x"]))
    parts = list(bundle.predict_parts([far.head(20), far.tail(30)]))
    held = pd.concat(parts)["price"].abs() <= float(np.finfo("float32").max)
    assert (~held).sum() == (far["x"] > 1).sum() == 2
    (text,) = caplog.messages
    assert text.startswith("target 'price': 2 of 50 predictions are infinite, NaN or beyond 3.4e+38")
    assert ("exponential" in text) == log
    assert "preprocess.scale=robust" in text


def test_nulls_of_a_table_that_was_grown_by_are_no_news(caplog):
    """The start had none, which its fill, that stays, goes on to tell."""
    schema = Schema((Column("speed", "continuous", "float32"), Column("clicked", "target", "float32")),
                    (Target("clicked", "binary"),))  # fmt: skip
    rows = pd.DataFrame({"speed": np.arange(200.0), "clicked": [1.0, 0.0] * 100})
    later = rows.assign(speed=rows["speed"].where(rows["speed"] % 2 == 0))
    preprocessor = Preprocessor(schema).fit([rows])
    preprocessor.grow([later])
    bundle = Bundle(preprocessor, FactorizationMachine(ModelInputs((), 2), FactorizationMachine.Settings()), {})
    bundle.predict(later)
    assert not caplog.messages
    bundle.predict(later.assign(speed=np.nan))
    assert caplog.messages == ["more is null than in training: 'speed' 100% of 200 rows (50% in training)."]


def test_a_column_is_unknown_if_no_part_of_it_is_known(caplog):
    columns = Column("shop", "categorical", "string"), Column("clicked", "target", "float32")
    rows = pd.DataFrame({"shop": ["a", "b"] * 15, "clicked": [1.0, 0.0] * 15})
    preprocessor = Preprocessor(Schema(columns, (Target("clicked", "binary"),))).fit([rows])
    inputs = ModelInputs(num_ids=(preprocessor.tensor_schema.ids[0].num_ids,), num_floats=0)
    bundle = Bundle(preprocessor, FactorizationMachine(inputs, FactorizationMachine.Settings()), {})
    other = rows.assign(shop="c")
    for parts in ([other, rows], [rows, other], [other.head(10), other.head(9)]):
        assert [len(part) for part in bundle.predict_parts(parts)] == [len(part) for part in parts]
        assert not caplog.messages
    assert list(bundle.predict_parts([])) == []
    assert len(list(bundle.predict_parts([other.head(15), other.head(15)]))) == 2
    (text,) = caplog.messages
    assert text.startswith("column 'shop': none of its 30 values (")


def test_a_missing_column_is_named_with_those_there(bundle, many):
    with pytest.raises(DataError, match=r"column\(s\) 'signal' not found\. Columns there: .*'signul'"):
        bundle.predict(many.head(3).rename(columns={"signal": "signul"}))


def test_ids_that_come_as_float_or_text_are_cast_or_refused_by_name(bundle, many, scores):
    as_float = many.head(5).assign(store=many["store"].head(5).astype("float64"))
    assert_scores(bundle.predict(as_float)["clicked"], scores[:5])
    with pytest.raises(DataError, match=r"column 'store' is declared int64.*fraction"):
        bundle.predict(many.head(5).assign(store=1.5))
    with pytest.raises(DataError, match="column 'signal' is declared float32"):
        bundle.predict(many.head(5).assign(signal="much"))


def test_a_category_dtype_is_read_by_value_not_by_code(bundle, many, scores):
    """A frame's own category codes may be in any order; they mean nothing."""
    names = sorted(many["city"].unique(), reverse=True)
    rows = many.head(50).assign(city=pd.Categorical(many["city"].head(50), categories=names))
    assert_scores(bundle.predict(rows)["clicked"], scores[:50])


def test_an_infinity_at_scoring_is_refused_by_name(bundle, many):
    with pytest.raises(DataError, match="column 'noise' holds an infinity"):
        bundle.predict(many.head(3).assign(noise=np.inf))


def test_a_multiclass_and_a_regression_target_are_named_by_class_and_column(tmp_path):
    schema = Schema(
        (Column("x", "continuous", "float32"), Column("kind", "target", "int32"), Column("size", "target", "float32")),
        (Target("kind", "multiclass", 3, ("red", "green", "blue")), Target("size", "regression")),
    )
    frame = pd.DataFrame({"x": [0.5, -1.0, 2.0, 0.0]})
    torch.manual_seed(0)
    model = TabularModel(ModelInputs((), 1, 4), TabularSettings(layers=(8,)))
    preprocessor = Preprocessor(schema, PreprocessorSettings(indicator="none")).fit([frame])
    Bundle(preprocessor, model, {"name": "a"}).save(tmp_path)
    found = load_bundle(tmp_path).predict(frame)
    assert list(found.columns) == ["kind_red", "kind_green", "kind_blue", "size"]
    scaled = torch.tensor((frame["x"] - 0.375).to_numpy() / frame["x"].std(ddof=0), dtype=torch.float32)[:, None]
    with torch.no_grad():
        outputs = model.eval()(torch.empty(4, 0, dtype=torch.int32), scaled).double().numpy()
    expected = np.exp(outputs[:, :3]) / np.exp(outputs[:, :3]).sum(1, keepdims=True)
    assert found.iloc[:, :3].to_numpy() == pytest.approx(expected, abs=1e-6)
    assert found["size"].to_numpy() == pytest.approx(outputs[:, 3], abs=1e-5)


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def shift_a_scale(path):
    content = json.loads(path.read_text())
    next(iter(content["scales"].values()))["mean"] += 1.0
    path.write_text(json.dumps(content))


def drop(path, key):
    content = json.loads(path.read_text())
    del content[key]
    path.write_text(json.dumps(content))


def described(folder):
    """The model as bundle.json describes it."""
    return json.loads((folder / "bundle.json").read_text())["model"]


def shrink_vocabulary(folder):
    path = folder / "preprocessor" / "vocabulary-000.parquet"
    pd.read_parquet(path).iloc[:-1].to_parquet(path)


DAMAGES = {
    "weights cut": lambda folder: cut(folder / "weights.safetensors"),
    "weights gone": lambda folder: (folder / "weights.safetensors").unlink(),
    "weights empty": lambda folder: (folder / "weights.safetensors").write_bytes(b""),
    "weights of another header": lambda folder: (folder / "weights.safetensors").write_bytes(
        struct.pack("<Q", 1 << 40)
    ),
    "json cut": lambda folder: cut(folder / "bundle.json"),
    "json gone": lambda folder: (folder / "bundle.json").unlink(),
    "json is a list": lambda folder: (folder / "bundle.json").write_text("[]"),
    "json not utf-8": lambda folder: (folder / "bundle.json").write_bytes(b"\xff\xfe{}"),
    "model is a list": lambda folder: edit(folder / "bundle.json", model=[]),
    "model of another size": lambda folder: edit(
        folder / "bundle.json", model=described(folder) | {"settings": described(folder)["settings"] | {"layers": [3]}}
    ),
    "model of another name": lambda folder: edit(folder / "bundle.json", model=described(folder) | {"name": "linear"}),
    "model without inputs": lambda folder: edit(folder / "bundle.json", model={"name": "tabular", "settings": {}}),
    "model with an unknown setting": lambda folder: edit(
        folder / "bundle.json", model=described(folder) | {"settings": {"depth": 3}}
    ),
    "preprocessor gone": lambda folder: shutil.rmtree(folder / "preprocessor"),
    "preprocessor cut": lambda folder: cut(folder / "preprocessor" / "preprocessor.json"),
    "vocabulary cut": lambda folder: cut(folder / "preprocessor" / "vocabulary-000.parquet"),
    "vocabulary shorter": shrink_vocabulary,
    "weights, one bit": lambda folder: flip(folder / "weights.safetensors"),
    "preprocessor, another mean": lambda folder: shift_a_scale(folder / "preprocessor" / "preprocessor.json"),
    "json, another period": lambda folder: edit(folder / "bundle.json", info={"trained_until": 1e9}),
    "json without its own checksum": lambda folder: drop(folder / "bundle.json", "checksum"),
    "json without the files' checksums": lambda folder: drop(folder / "bundle.json", "files"),
    "a file more": lambda folder: (folder / "preprocessor" / "vocabulary-099.parquet").touch(),
}


@pytest.mark.parametrize("damage", list(DAMAGES))
def test_a_damaged_bundle_is_an_error_that_names_it(folder, damage):
    DAMAGES[damage](folder)
    with pytest.raises(BundleError, match=f"bundle {folder}"):
        load_bundle(folder)


@pytest.mark.parametrize(
    ("name", "old"),
    [
        ("bundle.json", False), ("weights.safetensors", False), ("preprocessor/preprocessor.json", False),
        ("preprocessor/preprocessor.json", True), ("preprocessor/vocabulary-001.parquet", True),
    ],
)  # fmt: skip
def test_a_bundle_that_this_user_may_not_read_is_not_called_damaged(folder, name, old):
    """It said `missing or damaged (Permission denied)`, and to put a whole bundle back from a backup."""
    if old:  # whose files are not looked at first
        for key in ("files", "checksum"):
            drop(folder / "bundle.json", key)
    with (
        unreadable(folder / name),
        pytest.raises(PermissionError, match=rf"{folder}.*cannot be read \(.*Permission denied.*, so nobody can tell"),
    ):
        load_bundle(folder)
    load_bundle(folder)


def test_a_bundle_of_before_there_were_checksums_loads(folder, many, scores):
    for key in ("files", "checksum"):
        drop(folder / "bundle.json", key)
    assert_scores(load_bundle(folder).predict(many.head(9))["clicked"], scores[:9])


def test_a_bundle_saved_over_another_is_the_second(folder, bundle, many, scores):
    (folder / "notes.txt").write_text("mine")
    bundle.save(folder)
    (folder / "notes.txt").unlink()
    assert_scores(load_bundle(folder).predict(many.head(9))["clicked"], scores[:9])


def test_a_bundle_of_another_version_says_which(folder):
    edit(folder / "bundle.json", format=99)
    with pytest.raises(BundleError, match=r"format 99, this version reads 2\.$"):
        load_bundle(folder)


@pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")  # of bytes read as if a pickle's
def test_a_bundle_holds_nothing_that_runs_when_it_is_read(folder):
    """No pickle, whatever its name: JSON, Parquet and safetensors only."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".parquet", ".safetensors"}
    for path in files:
        content = path.read_bytes()
        with pytest.raises((ValueError, IndexError, AttributeError)):  # what pickletools says of what is no pickle
            list(pickletools.genops(content))


def test_a_bundle_does_not_need_the_folder_it_was_trained_in(folder, trained, many, scores):
    assert str(trained[0].folder).encode() not in b"".join(p.read_bytes() for p in folder.rglob("*") if p.is_file())
    assert_scores(load_bundle(folder).predict(many.head(9))["clicked"], scores[:9])


def test_a_row_through_the_online_transformer_scores_the_same(bundle, many, scores):
    transformer, loss = bundle.online(), target_loss(bundle.schema)
    for position, row in enumerate(many.head(30).to_dict("records")):
        ids, floats = (torch.from_numpy(array)[None] for array in transformer(row))
        outputs = torch.cat(list(model_outputs(bundle.model, ids, floats)))
        assert_scores(loss.predict(outputs)[0].numpy(), scores[[position]])


def test_scores_on_any_device_agree_with_the_cpu_and_do_not_depend_on_the_batch(folder, many, scores, any_device):
    bundle = load_bundle(folder, device=any_device)
    found = bundle.predict(many)["clicked"].to_numpy()
    assert_scores(found, scores)
    for position in (0, 77, MANY - 1):
        assert_scores(bundle.predict(many.iloc[[position]])["clicked"], found[[position]])


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_loading_draws_no_weights(kind, tmp_path):
    """R14: tables of a million ids were drawn at each load, minutes on a busy machine, to be overwritten."""
    entities = {"user": EntityColumns(0, (0,)), "item": EntityColumns(1, (1,))}
    lists = (ListInputs(8, shares=1),) if model_class(kind).needs_lists else ()
    inputs = ModelInputs((9, 8, 7), 3, 2 if kind == "multi_task" else 1, **entities, lists=lists)
    spec = ModelSpec(kind, inputs, model_class(kind).Settings())
    drawn, before = spec.build(), torch.get_rng_state()
    with AsAllocated():
        made = spec.build()
    assert torch.equal(torch.get_rng_state(), before)
    made.load_state_dict(drawn.state_dict())
    buffers = dict(made.named_buffers())  # also those that no file holds
    assert all(torch.equal(value, buffers[name]) for name, value in drawn.named_buffers())
    assert all(torch.equal(value, made.state_dict()[name]) for name, value in drawn.state_dict().items())


def test_a_loaded_bundle_leaves_the_random_state(trained):
    before = torch.get_rng_state()
    trained[1].bundle()
    assert torch.equal(torch.get_rng_state(), before)
