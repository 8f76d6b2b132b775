"""Raw rows over HTTP: the predictions of `Bundle.predict_raw`, told from rows of the features stage, and what is
refused."""

import json
import logging
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.errors import DataError
from gigabatch.features.operators import ParseNumber
from gigabatch.features.schema import Column, ListColumn, Schema, Target
from gigabatch.features.workflow.steps import parse_steps
from gigabatch.features.workflow.workflow import Workflow
from gigabatch.models.model import SCORE_ATOL, SCORE_RTOL
from gigabatch.models.shelf import ModelSpec, model_class
from gigabatch.pipeline.bundle import Bundle, load_bundle
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.config.serving import ServeSettings
from gigabatch.pipeline.serving.errors import Refusal
from gigabatch.pipeline.serving.raw_rows import RawRows
from gigabatch.pipeline.serving.served import load_served
from gigabatch.pipeline.store.files import atomic_symlink
from gigabatch.pipeline.training.train import model_inputs
from tests.examples import examples
from tests.pipeline.serving.small_bundles import raw_rows_of

STEPS = [
    {"date_parts": {"column": "at", "parts": ["hour"], "prefix": "at", "unit": "us"}},
    {"date_parts": {"column": "due", "parts": ["weekday"], "prefix": "due", "unit": "us"}},
    {"clean_text": {"column": "city", "case": "lower"}},
    {"parse_number": {"column": "price"}},
]
DTYPES = {
    "at": "datetime", "due": "datetime[%d.%m.%Y]", "city": "string", "price": "string", "rating": "float32",
    "items": "int64", "floor": "int32", "member": "bool", "tags": "list[string]|", "sizes": "list[int64]",
}  # fmt: skip
SCHEMA = Schema(
    (
        Column("at_hour", "categorical", "int64"),
        Column("due_weekday", "categorical", "int64"),
        Column("city", "categorical", "string"),
        Column("items", "categorical", "int64"),
        Column("floor", "categorical", "int32"),
        Column("member", "categorical", "bool"),
        Column("price", "continuous", "float32"),
        Column("rating", "continuous", "float32"),
        Column("bought", "target", "float32"),
    ),
    (Target("bought", "binary"),),
    lists=(ListColumn("tags"), ListColumn("sizes", elements="int64")),
)
NULL_WORDS = ["", "N/A"]
ROW = {
    "at": "2026-03-01T08:30:00", "due": "24.12.2026", "city": " OSLO", "price": "$1,027.62", "rating": 4.5, "items": 3,
    "floor": -1, "member": True, "tags": ["red", "new"], "sizes": [40, None, 41],
}  # fmt: skip
FEATURE_ROW = {
    "at_hour": 8, "due_weekday": 3, "city": "oslo", "price": 1027.62, "rating": 4.5, "items": 3, "floor": -1,
    "member": True, "tags": ["red", "new"], "sizes": [40, None, 41],
}  # fmt: skip


def raw_frame(rows: int = 80) -> pd.DataFrame:
    draw = np.random.default_rng(0)
    at = pd.Timestamp("2026-01-01") + pd.to_timedelta(draw.integers(0, 300 * 24, rows), unit="h")
    return pd.DataFrame(
        {
            "at": at.strftime("%Y-%m-%dT%H:%M:%S"),
            "due": at.strftime("%d.%m.%Y"),
            "city": draw.choice(["Oslo", " oslo", "BONN", "N/A"], rows),
            "price": [f"${value:,.2f}" for value in draw.lognormal(5, 2, rows)],
            "rating": np.where(draw.random(rows) < 0.2, np.nan, draw.integers(1, 6, rows)),
            "items": draw.integers(0, 5, rows),
            "floor": draw.integers(-2, 3, rows),
            "member": draw.random(rows) < 0.5,
            "tags": draw.choice(["red|new", "", "blue", "new"], rows),
            "sizes": [draw.integers(38, 42, count).tolist() for count in draw.integers(0, 3, rows)],
        }
    )


def raw_bundle(
    seed: int = 0, steps: list | None = None, schema: Schema = SCHEMA, dtypes: dict[str, str] = DTYPES
) -> Bundle:
    """A bundle of random weights with the way from raw rows to its features."""
    workflow = Workflow(parse_steps(STEPS if steps is None else steps), (), dtypes)
    raw = raw_frame()[list(dtypes)].replace({"N/A": None})
    if dtypes["price"] == "float32":
        raw["price"] = raw["price"].str.strip("$").str.replace(",", "")
    lists = [name for column in schema.lists for name in column.columns]
    served = workflow.fit([raw]).serving([*schema.names("categorical", "continuous"), *lists])
    features = served.transform(served.typed(raw))
    preprocessor = Preprocessor(schema).fit([features.assign(bought=np.arange(len(raw)) % 2.0)])
    torch.manual_seed(seed)
    model = ModelSpec("dcn", model_inputs(preprocessor), model_class("dcn").Settings()).build().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return Bundle(preprocessor, model, {"recipe": "table", "null_values": NULL_WORDS}, workflow=served)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw") / "first"
    raw_bundle().save(folder / "model")
    return folder


@pytest.fixture(scope="module")
def served(run):
    return load_served(run)


@pytest.fixture(scope="module")
def caller(served, make_caller):
    return make_caller(served, ServeSettings(timeout_seconds=60.0))


def scores(caller, rows, **more) -> list[float]:
    answer = caller.post("/score", {"rows": rows, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()["predictions"]["bought"]


def refused(caller, rows, **more) -> dict:
    answer = caller.post("/score", {"rows": rows, **more})
    assert answer.status_code == 422, answer.text
    return answer.json()


def close(found, wanted) -> bool:
    return np.allclose(np.array(found, float), np.array(wanted, float), rtol=SCORE_RTOL, atol=SCORE_ATOL)


def test_raw_rows_are_scored_as_predict_raw_scores_them(served, caller):
    frame = raw_frame()
    wanted = served.bundle.predict_raw(frame)["bought"]
    assert wanted.round(5).nunique() > 60
    rows = json.loads(frame.to_json(orient="records", double_precision=15))
    assert close(scores(caller, rows), wanted)
    assert close(scores(caller, rows, raw=True), wanted)
    labelled = [row | {"bought": 1, "order": "a7"} for row in rows]  # as they stand in a file
    assert close(scores(caller, labelled), wanted)
    assert close([scores(caller, [row])[0] for row in rows[:5]], wanted[:5])


def test_a_raw_row_is_scored_as_its_features_written_by_hand(served, caller):
    """Hour 8, a Thursday, and so on are of the calendar, not of this code."""
    found = scores(caller, [ROW])
    assert close(found, scores(caller, [FEATURE_ROW], raw=False))
    assert close(found, scores(caller, [FEATURE_ROW]))
    assert not close(found, scores(caller, [ROW | {"at": "2026-03-01T09:30:00"}]))


@pytest.mark.parametrize(
    ("changed", "same_as"),
    [
        ({"at": "2026-03-01 10:30+02:00"}, {}),
        ({"at": 1772353800_000_000}, {}),  # date -u -d 2026-03-01T08:30 +%s
        ({"city": "oslo"}, {}),
        ({"city": "N/A"}, {"city": None}),
        ({"price": 1027.62}, {}),
        ({"price": ""}, {"price": None}),
        ({"rating": "4.5"}, {}),
        ({"rating": "N/A"}, {"rating": None}),
        ({"items": 3.0}, {}),
        ({"items": "3"}, {}),
        ({"floor": "-1"}, {}),
        ({"member": 1}, {}),
        ({"member": "TRUE"}, {}),
        ({"tags": "red|new"}, {}),
        ({"tags": ""}, {"tags": []}),
        ({"tags": "red||new"}, {"tags": ["red", None, "new"]}),
        ({"sizes": ["40", None, "41"]}, {}),
        ({"sizes": None}, {"sizes": []}),
        (dict.fromkeys(name for name in ROW if name not in ("at", "due")), {}),
    ],
    ids=str,
)
def test_a_value_may_be_written_as_in_a_file_or_a_frame(served, caller, changed, same_as):
    row = ROW | changed
    found = scores(caller, [row], raw=True)
    frame = pd.DataFrame({name: pd.Series([value]) for name, value in row.items()})
    assert close(found, served.bundle.predict_raw(frame)["bought"])
    if None not in changed.values():
        assert close(found, scores(caller, [ROW | same_as]))
    among = scores(caller, [row, row], raw=True)  # other rows change nothing
    assert close(among, found * 2)


def test_columns_come_to_the_steps_as_the_workflow_types_them(served):
    frame = raw_frame()
    rows = json.loads(frame.to_json(orient="records", double_precision=15))
    raw, workflow = served.scorer.raw, served.bundle.raw_workflow
    wanted = workflow.typed(frame.replace({"N/A": None}))
    found = pd.DataFrame({name: raw._column(name, raw._values(name, [row[name] for row in rows])) for name in frame})
    pd.testing.assert_frame_equal(found, wanted, check_column_type=False)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"at": "yesterday"}, "time column 'at': neither numbers nor ISO 8601 times"),
        ({"at": 12}, "time column 'at' holds text in some rows and numbers in others, such as rows[0]"),
        ({"at": True}, "time column 'at' holds True, no time"),
        ({"due": "2026-12-24"}, "time column 'due': '2026-12-24' is no time in the format '%d.%m.%Y'"),
        ({"price": "1,5"}, "step 4 (parse_number): ParseNumber: column 'price' holds '1,5'"),
        ({"price": ["1"]}, "column 'price' is declared string but holds ['1']"),
        ({"rating": "good"}, "column 'rating' is declared float32 but holds 'good'"),
        ({"items": 1.5}, "it has a fraction"),
        ({"items": "1.5"}, "it is not written as a whole number"),
        ({"floor": 2**31}, "it is outside the range of int32"),
        ({"member": "maybe"}, "column 'member' is declared bool but holds 'maybe'"),
        ({"sizes": "40"}, "list column 'sizes' holds '40'. Give a list."),
        ({"tags": 4}, "list column 'tags' holds 4. Give a list, or text whose elements '|' separates."),
        (
            {"tags": "[new, red]"},
            "list column 'tags': '[new, red]' is a list in another form; the list separator '|' alone",
        ),
        ({"tags": "3 5 7"}, "list column 'tags': '3 5 7' is a list in another form; the list separator '|' alone"),
        ({"sizes": [40, 0.5]}, "column 'sizes' is declared int64 but holds 0.5"),
        ({"rating": 3e38, "price": "9e99"}, "column 'price' holds an infinity or a number beyond float32"),
        ({"items": ...}, "a raw row misses the column(s) 'items'"),
    ],
    ids=str,
)
def test_a_raw_row_that_cannot_be_used_is_named_with_its_column(caller, changed, said):
    bad = {name: value for name, value in (ROW | changed).items() if value is not ...}
    for raw in ({}, {"raw": True}):
        answer = refused(caller, [ROW, ROW, ROW, bad, ROW], **raw)
        assert answer["fields"][0]["field"] == "rows[3]"
        assert said in answer["message"]


def test_rows_of_two_kinds_are_never_mixed(caller):
    assert "no feature column: 'at'" in refused(caller, [FEATURE_ROW, ROW])["message"]
    assert "a raw row misses the column(s) 'at'" in refused(caller, [ROW, FEATURE_ROW])["message"]
    for rows in ([ROW], [FEATURE_ROW, ROW]):
        answer = refused(caller, rows, raw=False)
        assert answer["fields"][0]["field"] == f"rows[{len(rows) - 1}]"
    assert "misses the column(s) 'at', 'due'" in refused(caller, [FEATURE_ROW], raw=True)["message"]
    assert (
        """Raw rows, with "raw": true, have 'at', 'city', 'due', 'floor'"""
        in (refused(caller, [ROW | FEATURE_ROW], raw=False)["message"])
    )
    assert "raw: " in refused(caller, [ROW], raw="yes")["message"]


@pytest.mark.parametrize("missing", ROW)
def test_a_raw_row_that_lacks_a_column_is_told_which(served, caller, missing):
    """Not the column that a step makes of it."""
    row = {name: value for name, value in ROW.items() if name != missing}
    for raw in ({}, {"raw": True}):
        answer = refused(caller, [row], **raw)
        assert answer["fields"][0]["field"] == "rows[0]"
        assert re.search(rf"a raw row misses the column\(s\) '{missing}'[.,]", answer["message"])
    with pytest.raises(DataError, match=rf"column\(s\) '{missing}' not found"):
        served.bundle.predict_raw(pd.DataFrame([row]))


def test_a_row_of_neither_kind_is_told_what_either_would_have(caller):
    features = f"a row of the features stage has {', '.join(map(repr, sorted(FEATURE_ROW)))}, no other"
    for row, missing in (({"city": "x"}, sorted(ROW.keys() - {"city"})), (FEATURE_ROW | {"at": 1}, ["due"])):
        said = refused(caller, [row])["message"]
        assert f"a raw row misses the column(s) {', '.join(map(repr, missing))}, " in said
        assert features in said
    said = refused(caller, [{name: value for name, value in FEATURE_ROW.items() if name != "city"}])["message"]
    assert "missing column(s): 'city'" in said


@pytest.mark.parametrize(
    "extra", [{"at_hour": 21}, {"at_hour": "no hour"}, FEATURE_ROW | ROW, {"label": None}], ids=str
)
def test_an_extra_column_is_passed_over_though_a_step_makes_its_name(served, caller, extra):
    """21 o'clock is another prediction: what the step makes of `at` counts."""
    wanted = scores(caller, [ROW])
    assert not close(wanted, scores(caller, [FEATURE_ROW | {"at_hour": 21}]))
    assert close(scores(caller, [ROW | extra]), wanted)
    assert close(scores(caller, [ROW, ROW | extra], raw=True), wanted * 2)
    frame = pd.DataFrame([ROW | extra])
    assert close(served.bundle.predict_raw(frame)["bought"], wanted)
    assert list(frame) == [*(ROW | extra)]


IN_PLACE = Schema(
    (
        Column("city", "categorical", "string"),
        Column("price", "continuous", "float32"),
        Column("bought", "target", "float32"),
    ),
    (Target("bought", "binary"),),
)


def test_rows_that_may_be_either_are_refused_until_it_is_said(tmp_path, make_caller):
    """Steps that replace columns leave no name that would tell: " Oslo" among features is another city."""
    bundle = raw_bundle(0, STEPS[2:], IN_PLACE, {"city": "string", "price": "string"})
    bundle.save(tmp_path / "run" / "model")
    caller = make_caller(load_served(tmp_path / "run"))
    row = {"city": " OSLO", "price": "7"}
    answer = refused(caller, [row])
    assert answer["fields"][0]["field"] == "raw"
    assert 'Say "raw": true' in answer["message"]
    as_raw, as_features = scores(caller, [row], raw=True), scores(caller, [row], raw=False)
    assert close(as_raw, bundle.predict_raw(pd.DataFrame([row]))["bought"])
    assert close(as_features, bundle.predict(pd.DataFrame([row | {"price": 7.0}]))["bought"])
    assert not close(as_raw, as_features)


def test_rows_of_some_columns_that_steps_add_are_refused_until_it_is_said(tmp_path, make_caller):
    """Every raw column is one of the features stage too: a feature row that lacks one is not taken for a raw row."""
    added = tuple(Column(name, "categorical", "int64") for name in ("dear", "dearest"))
    schema = Schema((*added, *IN_PLACE.columns), IN_PLACE.targets)
    steps = [{"parse_number": {"column": "price"}}]
    steps += [{"bucketize": {"column": "price", "edges": [5.0], "output": column.name}} for column in added]
    bundle = raw_bundle(0, steps, schema, {"city": "string", "price": "string"})
    bundle.save(tmp_path / "run" / "model")
    caller = make_caller(load_served(tmp_path / "run"))
    raw, feature = {"city": "Oslo", "price": "7"}, {"city": "Oslo", "price": 7.0, "dear": 2, "dearest": 2}
    wanted = bundle.predict_raw(pd.DataFrame([raw]))["bought"]
    assert close(wanted, bundle.predict(pd.DataFrame([feature]))["bought"])
    assert close(scores(caller, [raw]), wanted)
    assert close(scores(caller, [raw | {"label": 1}]), wanted)
    assert close(scores(caller, [feature]), wanted)
    for some in ({"dear": 2}, {"dear": 2, "dearest": 2, "label": 1}):
        answer = refused(caller, [raw | some])
        assert answer["fields"][0]["field"] == "raw"
        assert close(scores(caller, [raw | some], raw=True), wanted)
    assert "a raw row misses the column(s) 'price'," in refused(caller, [{"city": "Oslo"}])["message"]


def test_without_steps_the_words_for_null_are_all_that_raw_rows_have_of_their_own(tmp_path, make_caller):
    bundle = raw_bundle(0, [], IN_PLACE, {"city": "string", "price": "float32"})
    bundle.save(tmp_path / "run" / "model")
    caller = make_caller(load_served(tmp_path / "run"))
    rows = [{"city": "BONN", "price": 2.5}, {"city": "N/A", "price": "N/A"}]
    nulls = [{"city": "BONN", "price": 2.5}, {"city": None, "price": None}]
    wanted = bundle.predict_raw(pd.DataFrame(nulls))["bought"]
    for raw in ({}, {"raw": True}):
        assert close(scores(caller, rows, **raw), wanted)
        assert close(scores(caller, [row | {"label": 1} for row in rows], **raw), wanted)
    assert "which does not fit" in refused(caller, rows, raw=False)["message"]


@pytest.mark.parametrize("steps", [[], [{"clip": {"column": "price", "high": 1e6}}]])
@pytest.mark.parametrize("value", ["-999", -999, -999.0, "-999.0"])
def test_a_number_that_is_a_null_word_is_null_in_frames_and_in_served_rows(steps, value):
    bundle = raw_bundle(0, steps, IN_PLACE, {"city": "string", "price": "float32"})
    bundle.info["null_values"] = ["", "-999"]
    for name, other in (("price", {"city": "BONN"}), ("city", {"price": 2.5})):
        frame = pd.DataFrame({name: [value], **{key: [one] for key, one in other.items()}})
        assert bundle.from_raw(frame)[name].isna().tolist() == [True]
        assert bundle.from_raw(frame.assign(**{name: 3}))[name].isna().tolist() == [False]
        served, kept = RawRows(bundle, (name,))([{name: value, **other}, {name: 3, **other}])
        assert pd.isna(served[0])
        assert not pd.isna(kept[0])


def test_a_bundle_without_a_way_from_raw_rows_says_so(tmp_path, make_caller):
    bundle = raw_bundle()
    bundle.workflow, bundle.info["raw_refused"] = None, "step 1 (rolling): makes 'n' from other rows."
    bundle.save(tmp_path / "run" / "model")
    caller = make_caller(load_served(tmp_path / "run"))
    answer = caller.post("/score", {"rows": [ROW], "raw": True})
    assert (answer.status_code, answer.json()["error"]) == (409, "not_available")
    assert "step 1 (rolling): makes 'n' from other rows" in answer.json()["message"]
    assert "no feature column: 'at'" in refused(caller, [ROW])["message"]
    assert len(scores(caller, [FEATURE_ROW])) == 1


def test_a_wrong_row_is_found_in_a_few_passes(served, caller, monkeypatch):
    """One of a thousand: each row by itself would take a thousand calls of the workflow."""
    calls = []
    transform = served.bundle.workflow.transform
    monkeypatch.setattr(served.bundle.workflow, "transform", lambda frame: calls.append(len(frame)) or transform(frame))
    rows = [ROW] * 1000
    answer = refused(caller, [*rows[:700], ROW | {"price": "1,5"}, *rows[701:]])
    assert answer["fields"][0]["field"] == "rows[700]"
    assert len(calls) <= 11
    assert sum(calls) < 9000
    long = refused(caller, [ROW | {"price": ',"' * 400}])
    assert len(json.dumps(long)) < 4000


def test_a_bundle_is_served_though_a_step_fails_on_nulls(run, monkeypatch, caplog):
    def fail(self, frame):
        raise RuntimeError("of the user's own")

    monkeypatch.setattr(ParseNumber, "compute", fail)
    with caplog.at_level(logging.WARNING):
        found = load_served(run)
    assert "a raw row fails in a step" in caplog.text
    assert "in step 4 (parse_number) of the workflow" in caplog.text
    assert found.scorer([FEATURE_ROW]).keys() == {"bought"}


values = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12)
    | st.sampled_from([2**70, -(2**70), "9" * 19, "1e400", "(3", "$", "-0"])
    | st.sampled_from(["29.02.2025", "0001-01-01", "9999-12-31T23:59:59.9999999"])
)  # fmt: skip
anything = values | st.lists(values, max_size=3)
raw_rows = st.fixed_dictionaries({name: st.just(value) | anything for name, value in ROW.items()})


@settings(max_examples=examples(150), deadline=None)
@given(rows=st.lists(raw_rows, min_size=1, max_size=3), raw=st.sampled_from([{}, {"raw": True}, {"raw": False}]))
def test_no_raw_value_breaks_the_service(rows, raw, caller):
    answer = caller.post("/score", {"rows": rows, **raw})
    assert answer.status_code in (200, 422), answer.text
    if answer.status_code == 422:
        assert answer.json()["fields"][0]["field"].startswith("rows")


def test_workers_take_raw_rows_and_a_new_bundles_steps(run, tmp_path):
    """The second bundle's steps make capitals of cities, so that its answers follow from them."""
    from tests.pipeline.serving.server_process import Server
    from tests.pipeline.serving.test_serving_workers import ask, wait_until

    second = tmp_path / "second"
    raw_bundle(1, [*STEPS[:2], {"clean_text": {"column": "city", "case": "upper"}}, STEPS[3]]).save(second / "model")
    atomic_symlink(run, tmp_path / "current")
    server = Server([tmp_path / "current"], tmp_path / "log", workers=2, poll_seconds=0.1, timeout_seconds=60.0)
    body = json.dumps({"rows": [ROW, ROW | {"city": "bonn"}]})

    def answers(folder: Path) -> bool:
        found = ask(server, "POST", "/score", body)
        wanted = load_bundle(folder / "model").predict_raw(pd.DataFrame([ROW, ROW | {"city": "bonn"}]))["bought"]
        assert found[0] == 200
        content = json.loads(found[1])
        assert content["bundle"] in ("first", "second")
        return content["bundle"] == folder.name and close(content["predictions"]["bought"], wanted)

    try:
        wait_until(lambda: ask(server, "GET", "/health")[0] == 200)
        assert all(answers(run) for _ in range(4))
        atomic_symlink(second, tmp_path / "current")
        wait_until(lambda: all(answers(second) for _ in range(4)))
    finally:
        assert server.stop() == 0


def test_what_init_writes_is_trained_scored_and_served_alike(tmp_path, monkeypatch, make_caller):
    """U5: a newcomer's way, from a CSV file to /score, without a hand edit."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    shop = raw_frame(300).drop(columns=["tags", "sizes"])
    shop["bought"] = (draw.random(300) < 0.5).astype(int)
    shop.to_csv("shop.csv", index=False)
    assert main(["init", "shop.csv", "--target", "bought"]) == 0
    assert main(["train", "--config", "conf/shop.yaml", "train.epochs=1"]) == 0
    assert main(["score", "--config", "conf/shop.yaml", "--input", "shop.csv", "--out", "scores.csv"]) == 0
    written = pd.read_csv("scores.csv")["predicted_bought"]
    caller = make_caller(load_served(tmp_path / "runs" / "shop" / "current"))
    rows = json.loads(pd.read_csv("shop.csv", keep_default_na=False).to_json(orient="records"))
    assert close(scores(caller, rows), written)
    workflow = load_bundle("runs/shop/current/model").raw_workflow
    made = {name for position in range(len(workflow.steps)) for name in workflow.made(position)} - set(shop)
    assert "at_hour" in made
    pd.read_csv("shop.csv", keep_default_na=False).assign(**dict.fromkeys(made, "x")).to_csv("more.csv", index=False)
    assert main(["score", "--config", "conf/shop.yaml", "--input", "more.csv", "--out", "more-scores.csv"]) == 0
    np.testing.assert_array_equal(pd.read_csv("more-scores.csv")["predicted_bought"], written)


def test_what_has_no_declared_type_is_read_as_a_frame_would_read_it():
    """Workflows made by hand may leave types out."""
    schema = Schema((Column("n", "categorical", "int64"), Column("y", "target", "float32")), (Target("y", "binary"),))
    workflow = Workflow(parse_steps([{"clip": {"column": "x", "low": 0.0}}])).fit([pd.DataFrame({"x": [1.0]})])
    train = pd.DataFrame({"n": [1, 2**60 + 1], "y": [0.0, 1.0]})
    bundle = raw_bundle()
    bundle.preprocessor, bundle.workflow, bundle.info = Preprocessor(schema).fit([train]), workflow, {}
    found = RawRows(bundle, ("n",))
    assert sorted(found.columns) == ["n", "x"]
    assert found([{"n": 2**60 + 1, "x": -1.0}, {"n": None, "x": 2.0}])[0] == (2**60 + 1,)


def test_times_that_are_cast_together_are_each_s_own_and_errors_name_their_column():
    dtypes = {"a": "datetime", "b": "datetime", "c": "datetime", "n": "datetime[ns]", "o": "datetime[ns]"}
    steps = [{"date_parts": {"column": name, "parts": ["hour", "year"], "prefix": name}} for name in dtypes]
    workflow = Workflow(parse_steps(steps), (), dtypes)
    whole_hours = 472_222  # since 1970, of the nanosecond before which a float knows nothing
    day = {"a": "2026-03-01T08:30:00", "b": "1999-12-31 23:00", "c": "2026-03-01T08:30:00.25+02:00"}
    day |= {"n": whole_hours * 3600 * 10**9 - 1, "o": 3600.5 * 10**9}
    workflow.fit([workflow.typed(pd.DataFrame([day]))])
    names = [name for step in workflow.steps for name in step.outputs]
    raw = raw_rows_of(workflow.serving(names), names)
    expected = (8, 2026, 23, 1999, 6, 2026, (whole_hours - 1) % 24, 2023, 1, 1970)
    assert raw([day]) == [expected]
    first, second = raw([day, day | {"b": None}])
    assert first == expected
    assert second[2:4] == (pd.NA, pd.NA)
    assert second[:2] + second[4:] == expected[:2] + expected[4:]
    with pytest.raises(Refusal, match=r"rows\[1\]: .*'c'.*noon") as refused:
        raw([day, day | {"c": "noon"}])
    assert refused.value.status == 422


@pytest.mark.parametrize(
    ("dtype", "whole", "micros"),
    [("datetime[ns]", 1_700_000_000_123_456_999, 1_700_000_000_123_456), ("datetime", 2**53 + 1, 2**53 + 1)],
)
def test_a_time_in_whole_numbers_is_the_same_beside_one_with_a_fraction(dtype, whole, micros):
    """As a float64 the nanosecond is one of the next microsecond, and the other is no whole number for sure."""
    workflow = Workflow(parse_steps([{"clip": {"column": "x", "low": 0.0}}]), (), {"t": dtype, "x": "float32"})
    workflow.fit([pd.DataFrame({"x": [1.0], "t": [1]})])
    raw = raw_rows_of(workflow, ["t"])
    rows = [{"t": value, "x": 1.0} for value in (whole, 4000.0, None)]
    assert raw(rows[:1]) == [(micros,)]
    assert raw(rows) == [(micros,), (4 if "ns" in dtype else 4000,), (pd.NA,)]
    with pytest.raises(Refusal, match=r"rows\[2\]"):
        raw([*rows[:2], {"t": 1e300, "x": 1.0}])
    for beside in ([], [{"t": 1.5, "x": 1.0}]):
        with pytest.raises(Refusal, match="beyond int64"):
            raw([*beside, {"t": 2**70, "x": 1.0}])
