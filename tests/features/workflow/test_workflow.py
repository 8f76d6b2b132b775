"""Workflows: the same as the operators by hand, in any partitions; saved, damaged, and served without labels."""

import json
import shutil
import threading
import time
from pathlib import Path

import dask
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.operators import operator_class
from gigabatch.features.operators.base import FittedOperator
from gigabatch.features.operators.categories.categorify import Categorify
from gigabatch.features.operators.categories.text_flags import TextFlags
from gigabatch.features.operators.groups.folded_target_encoding import FoldedTargetEncoding
from gigabatch.features.operators.groups.join_external import JoinExternal
from gigabatch.features.operators.history.rank_within_group import RankWithinGroup
from gigabatch.features.operators.lists.explode_lists import ExplodeLists
from gigabatch.features.operators.missing.drop_nulls import DropNulls
from gigabatch.features.operators.missing.fill_missing import FillMissing
from gigabatch.features.operators.numbers.clip import Clip
from gigabatch.features.operators.numbers.difference import Difference
from gigabatch.features.operators.numbers.log import Log
from gigabatch.features.operators.numbers.min_max import MinMax
from gigabatch.features.operators.numbers.normalize import Normalize
from gigabatch.features.operators.numbers.quantile_buckets import QuantileBuckets
from gigabatch.features.operators.rows.filter import Filter
from gigabatch.features.operators.rows.rename import Rename
from gigabatch.features.workflow import fit
from gigabatch.features.workflow.workflow import Workflow, _checksum
from tests.examples import examples
from tests.features.damage import damaged
from tests.features.equal_states import same
from tests.features.partitioned import COUNTS, cut
from tests.features.workflow.workflow_steps import STEPS, table


def by_hand(steps, frame):
    """Each operator fitted on the whole frame and applied to it, one after the other."""
    for step in steps:
        frame = step.apply_to_train(frame, step.fit([frame])) if isinstance(step, FittedOperator) else step(frame)
    return frame


@pytest.fixture(scope="module")
def rows():
    return table()


@pytest.fixture(scope="module")
def whole(rows):
    workflow = Workflow.from_steps(STEPS, labels=["clicked"])
    return workflow.fit([rows])


@pytest.fixture
def saved(whole, tmp_path):
    whole.save(tmp_path / "workflow")
    return tmp_path / "workflow"


def passes_of(workflow, parts, monkeypatch):
    """How often the partitions were gone through."""
    count = []
    one_pass = fit._one_pass
    monkeypatch.setattr(fit, "_one_pass", lambda *given: count.append(1) or one_pass(*given))
    workflow.fit(parts)
    return len(count)


def test_a_workflow_is_its_operators_by_hand(rows, whole):
    pd.testing.assert_frame_equal(whole.transform(rows), by_hand(whole.steps, rows), check_exact=True)
    (found,) = Workflow.from_steps(STEPS).fit_transform([rows])
    pd.testing.assert_frame_equal(found, by_hand(whole.steps, rows), check_exact=True)


@settings(max_examples=examples(8), deadline=None)
@given(COUNTS, st.integers(0, 2**32 - 1))
def test_any_partitions_in_any_order_give_the_same(rows, whole, count, seed):
    parts = cut(rows, count, seed)
    found = Workflow.from_steps(STEPS).fit(parts)
    expected = whole.transform(rows)
    # The rows that are transformed may be cut as well.
    transformed = pd.concat([found.transform(part) for part in parts]).loc[expected.index]
    pd.testing.assert_frame_equal(transformed, expected, check_exact=True)


def test_partitions_may_be_parquet_files(rows, whole, tmp_path):
    for number in range(4):
        rows.iloc[number * 100 : number * 100 + 100].to_parquet(tmp_path / f"{number}.parquet")
    parts = [("pandas", path) for path in tmp_path.iterdir()]
    pd.testing.assert_frame_equal(Workflow.from_steps(STEPS).fit(parts).transform(rows), whole.transform(rows))


COLUMN = st.sampled_from(["a", "b", "c"])
ANY_STEP = st.one_of(
    st.builds(MinMax, COLUMN),
    st.builds(Normalize, COLUMN),
    st.builds(QuantileBuckets, COLUMN, st.integers(2, 4)),
    st.builds(FillMissing, COLUMN, st.sampled_from(["none", "all"])),
    st.builds(Clip, COLUMN, low=st.floats(-1, 1)),
    st.builds(Difference, COLUMN, COLUMN, COLUMN),
    st.builds(Filter, COLUMN, st.just(">"), st.floats(-1, 1)),
    st.builds(Rename, st.permutations(["a", "b", "c"]).map(lambda to: dict(zip("abc", to, strict=True)))),
)


def outcome(work):
    """What a call gives, or that it is refused."""
    try:
        return work()
    except DataError:
        return None


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(ANY_STEP, max_size=7), st.sets(COLUMN, min_size=1), COUNTS, st.integers(0, 2**32 - 1))
def test_any_steps_are_fitted_and_served_as_by_hand(steps, outputs, count, seed):
    frame = pd.DataFrame(np.random.default_rng(5).normal(size=(60, 3)).astype("float32"), columns=["a", "b", "c"])
    expected = outcome(lambda: by_hand(steps, frame))
    if expected is None:  # such as no rows left to fit on, or an indicator that is there already
        assert outcome(lambda: Workflow(steps).fit(cut(frame, count, seed)).transform(frame)) is None
        return
    workflow = Workflow(steps)
    found = workflow.fit(cut(frame, count, seed)).transform(frame)
    pd.testing.assert_frame_equal(found, expected, check_exact=True)
    serving = workflow.serving(sorted(outputs))
    served = serving.transform(frame[list(serving.applied_inputs)])
    assert len(served) == len(frame)
    pd.testing.assert_frame_equal(served.loc[expected.index], expected[sorted(outputs)], check_exact=True)


def test_steps_that_do_not_depend_on_each_other_are_fitted_in_one_pass(rows, monkeypatch):
    independent = [MinMax("row"), Categorify("city"), Categorify("kinds")]
    assert passes_of(Workflow(independent), [rows], monkeypatch) == 1
    chain = [Clip("row", low=3), MinMax("row"), Normalize("row"), Categorify("city")]
    assert passes_of(Workflow(chain), [rows], monkeypatch) == 2
    assert passes_of(Workflow([Clip("row", low=3)]), [rows], monkeypatch) == 0


def test_the_passes_run_where_the_scheduler_says(rows, whole):
    found = Workflow.from_steps(STEPS).fit(cut(rows, 3, 0), scheduler="synchronous")
    pd.testing.assert_frame_equal(found.transform(rows), whole.transform(rows), check_exact=True)
    asked = []

    def scheduler(graph, keys, **settings):
        asked.append(keys)
        return dask.get(graph, keys, **settings)

    Workflow([MinMax("row")]).fit([rows], scheduler=scheduler)
    assert len(asked) == 1


def test_steps_of_one_pass_see_the_table_at_their_own_place(rows, monkeypatch):
    # `price` is replaced from `row`, and rows go, between the three steps that are fitted in the same pass.
    steps = [
        TextFlags("kinds", "k_"), Rename({"price": "old"}), Log("row", "price"), MinMax("price"),
        DropNulls(["clicked"]), MinMax("row"),
    ]  # fmt: skip
    workflow = Workflow(steps)
    assert passes_of(workflow, [rows], monkeypatch) == 1
    pd.testing.assert_frame_equal(workflow.transform(rows), by_hand(steps, rows), check_exact=True)
    assert workflow.states[5].low == rows["row"][rows["clicked"].notna()].min()


@pytest.mark.parametrize("steps", [STEPS, [{"rank_within_group": {"by": ["city"], "value": "row", "output": "place"}},
                                           {"fill_missing": {"column": "place"}}]])  # fmt: skip
def test_of_files_only_the_columns_that_steps_need_are_read(rows, tmp_path, monkeypatch, steps):
    parts = [("pandas", tmp_path / f"{k}.parquet") for k in range(3)]
    wide = rows.assign(**{f"unused_{k}": "x" for k in range(5)}, kind_of_row=1.0)
    for (_, path), frame in zip(parts, cut(wide, 3, 1), strict=True):
        frame.to_parquet(path, index=False)
    engine, read = fit.load_engine("pandas"), []
    whole = engine.read_parquet

    def read_parquet(path, columns=None):
        read.append(columns)
        return whole(path, columns)

    monkeypatch.setattr(engine, "read_parquet", read_parquet)
    workflow = Workflow.from_steps(steps).fit(parts)
    assert read
    assert all(columns is not None and set(columns) <= set(workflow.inputs) for columns in read)
    expected = Workflow.from_steps(steps).fit(cut(wide, 3, 1))
    assert all(same(workflow.states[k], expected.states[k]) for k in expected.states)
    with pytest.raises(DataError, match=r"workflow: .*0\.parquet: column\(s\) 'length' not found"):
        Workflow([MinMax("length")]).fit(parts)


@pytest.mark.parametrize(("name", "most"), [("pandas", 2), ("cudf", 1)])
def test_no_more_partitions_are_held_than_the_scheduler_has_threads_and_on_a_gpu_one(rows, monkeypatch, name, most):
    """cuDF's engine is stood in for by its name alone, which is what decides."""
    monkeypatch.setattr(fit.load_engine("pandas"), "NAME", name)
    held, found, lock = [0], [], threading.Lock()

    class Slow(MinMax):
        def partial(self, frame):
            with lock:
                held[0] += 1
                found.append(held[0])
            time.sleep(0.01)
            with lock:
                held[0] -= 1
            return super().partial(frame)

    monkeypatch.setattr(
        fit.load_engine("pandas"), "map_columns", lambda function, keys: [function(key) for key in keys]
    )
    Workflow([Slow("row")]).fit(cut(rows, 12, 0), scheduler=fit.threads(2) if most == 2 else "threads")
    assert len(found) == 12
    assert max(found) <= most


def test_group_wise_steps_see_whole_groups_at_fit(rows):
    steps = [RankWithinGroup(["city"], "row", "place"), FillMissing("place"), MinMax("place")]
    workflow = Workflow(steps).fit(cut(rows, 7, 1))
    found = workflow.transform(rows, whole_groups=True)
    pd.testing.assert_frame_equal(found, by_hand(steps, rows), check_exact=True)


def test_columns_whose_names_follow_from_the_fit_can_be_read(rows):
    steps = [TextFlags("kinds", "kind_"), Normalize("kind_b")]
    workflow = Workflow(steps).fit([rows])
    assert workflow.inputs == ("kinds",)
    pd.testing.assert_frame_equal(workflow.transform(rows), by_hand(steps, rows))


def test_a_raw_column_may_look_like_one_that_a_step_makes(rows):
    raw = rows.rename(columns={"row": "kind_of_row"})
    workflow = Workflow([TextFlags("kinds", "kind_"), MinMax("kind_of_row")]).fit([raw])
    assert workflow.applied_inputs == ("kinds", "kind_of_row")
    serving = workflow.serving(["kind_of_row", "kind_a"])
    assert serving.applied_inputs == ("kinds", "kind_of_row")
    assert serving.transform(raw[["kinds", "kind_of_row"]])["kind_of_row"].tolist() == pytest.approx(
        np.linspace(0, 1, 400)
    )


def test_inputs_are_the_raw_columns(whole):
    assert sorted(whole.inputs) == ["age", "city", "clicked", "kinds", "price"]
    assert Workflow([Log("a", "b"), MinMax("b")]).inputs == ("a",)
    assert Workflow([Rename({"a": "b"}), MinMax("b"), Log("c", "a")]).inputs == ("a", "c")


def test_a_column_that_nothing_provides_is_an_error_with_the_step():
    workflow = Workflow([Log("price", "log_price"), MinMax("log_prize")])
    with pytest.raises(DataError, match=r"step 2 \(min_max\): column 'log_prize' .*Did you mean 'log_price'\?"):
        workflow.check(["price", "age"])
    workflow.check(["price", "log_prize"])
    with pytest.raises(DataError, match=r"step 2 \(log\): column 'a' is no longer there: an earlier step"):
        Workflow([Rename({"a": "b"}), Log("a")])
    with pytest.raises(DataError, match=r"step 2 \(log\): column 'x' is no longer there"):
        Workflow([ExplodeLists({"l": ("e", "int64")}, "place", ["user"]), Log("x")]).check(["l", "user", "x"])
    with pytest.raises(DataError, match=r"workflow: column\(s\) 'price', 'log_prize' not found"):
        workflow.fit([pd.DataFrame({"a": [1]})])


def test_a_name_that_a_step_puts_together_overwrites_nothing(rows):
    flags = [TextFlags("kinds", "is_")]
    with pytest.raises(DataError, match=r"step 1 \(text_flags\): TextFlags: column 'is_b' would be overwritten"):
        Workflow(flags, labels=["is_b"]).fit([rows])  # the label of a word's name, which nobody foresaw
    with pytest.raises(DataError, match=r"step 1 \(text_flags\): TextFlags: column 'is_b' .*there already"):
        Workflow(flags).fit([rows]).transform(rows.assign(is_b=7))
    with pytest.raises(DataError, match=r"step 1 \(fill_missing\): FillMissing: column 'age_na' .*there already"):
        Workflow([FillMissing("age", "all")], labels=["age_na"])
    with pytest.raises(DataError, match=r"step 2 \(text_flags\): TextFlags: column 'is_a' .*there already"):
        Workflow([*flags, TextFlags("city", "is_")]).fit([rows.assign(city="a")])
    by = [operator_class("join_groupby")(keys, ["price"], ["mean"]) for keys in (["a_b"], ["a", "b"])]
    with pytest.raises(DataError, match=r"step 2 \(join_groupby\): JoinGroupby: column 'price_mean_by_a_b'"):
        Workflow(by)
    with pytest.raises(DataError, match=r"step 1 \(fill_missing\): .* 'age_na' would be overwritten"):
        Workflow([FillMissing("age", "all")]).check(["age", "age_na"])


def test_misuse_is_an_error(rows, whole):
    with pytest.raises(DataError, match="not fitted"):
        Workflow.from_steps(STEPS).transform(rows)
    with pytest.raises(DataError, match="no partition was given"):
        Workflow.from_steps(STEPS).fit([])
    with pytest.raises(DataError, match=r"workflow: column\(s\) 'city' not found"):
        whole.transform(rows.drop(columns="city"))
    with pytest.raises(DataError, match=r"step 1 \(log\): Log: column 'price' .* not above 0"):
        Workflow([Log("price", offset=-1e9)]).transform(rows)
    with pytest.raises(DataError, match="unknown type 'int8'"):
        Workflow([], dtypes={"a": "int8"})


def test_an_unforeseen_error_carries_the_step(rows):
    class Broken(Clip):
        def transform(self, frame):
            raise KeyError("oops")

    with pytest.raises(KeyError) as error:
        Workflow([Log("price", "p"), Broken("price", low=0)]).transform(rows)
    assert error.value.__notes__ == [
        "in step 2 (broken) of the workflow: Broken(column='price', low=0, output='price')"
    ]


def test_saved_and_loaded_it_gives_the_same_bits(rows, whole, saved):
    found = Workflow.load(saved)
    pd.testing.assert_frame_equal(found.transform(rows), whole.transform(rows), check_exact=True)
    assert found.to_steps() == whole.to_steps()
    assert (found.labels, found.dtypes, found.outputs) == (whole.labels, whole.dtypes, whole.outputs)
    found.save(saved.parent / "again")
    for path in saved.iterdir():
        assert (saved.parent / "again" / path.name).read_bytes() == path.read_bytes()
    suffixes = {path.suffix for path in saved.iterdir()}
    assert suffixes == {".json", ".parquet"}


def test_tables_among_the_arguments_are_saved(rows, tmp_path):
    cities = pd.DataFrame({"name": ["Oslo", "Lima"], "height": [23.0, 154.0], "unused": [1, 2]})
    workflow = Workflow([Rename({"city": "name"}), JoinExternal(cities, ["name"], {"height": "city_height"})])
    workflow.fit([rows]).save(tmp_path)
    found = Workflow.load(tmp_path).transform(rows)
    pd.testing.assert_frame_equal(found, workflow.transform(rows))
    assert found["city_height"].sum() == 23.0 * (rows["city"] == "Oslo").sum() + 154.0 * (rows["city"] == "Lima").sum()


def test_the_serving_part_equals_the_whole_on_rows_without_labels(rows, whole, saved):
    kept = rows[rows["clicked"].notna()]
    expected = whole.transform(rows)
    for workflow in (whole, Workflow.load(saved)):
        serving = workflow.serving()
        assert "clicked" not in serving.applied_inputs
        assert "drop_nulls" not in {name for step in serving.to_steps() for name in step}
        found = serving.transform(kept.drop(columns="clicked"))
        pd.testing.assert_frame_equal(found, expected.drop(columns="clicked"), check_exact=True)
        assert len(serving.transform(rows.drop(columns="clicked"))) == len(rows)
        chosen = workflow.serving(["log_price", "kind_b", "row"])
        assert [name for step in chosen.to_steps() for name in step] == [
            "log",
            "fill_missing",
            "normalize",
            "text_flags",
        ]
        assert sorted(chosen.applied_inputs) == ["kinds", "price", "row"]
        found = chosen.transform(kept[["kinds", "price", "row"]])
        pd.testing.assert_frame_equal(found, expected[["log_price", "kind_b", "row"]], check_exact=True)
        assert chosen.serving().to_steps() == chosen.to_steps()


def test_rows_that_the_fit_saw_are_not_told_their_own_label(rows):
    known = rows[rows["clicked"].notna()]
    steps = [FoldedTargetEncoding(["city"], ["clicked"], "row", smoothing=1.0), Normalize("clicked_encoded_by_city")]
    workflow = Workflow(steps, labels=["clicked"]).fit([known])
    expected = by_hand(steps, known)
    pd.testing.assert_frame_equal(workflow.transform_train(known), expected, check_exact=True)
    pd.testing.assert_frame_equal(workflow.fit_transform([known])[0], expected, check_exact=True)
    # Whoever serves has the city alone; the scale is that of the rows that the model is trained on.
    served = workflow.serving().transform(known[["city"]])["clicked_encoded_by_city"]
    assert workflow.serving().applied_inputs == ("city",)
    assert served.nunique() <= 4 < expected["clicked_encoded_by_city"].nunique()
    assert abs(expected["clicked_encoded_by_city"].mean()) < 1e-6 < abs(served.mean())


def test_an_output_that_needs_a_label_or_other_rows_is_an_error_with_the_step(rows):
    workflow = Workflow([Log("clicked"), Log("row", "log_row")], labels=["clicked"]).fit([rows])
    assert workflow.serving().applied_inputs == ("row",)
    for name in ("clicked", "city"):
        chosen = Workflow([Log(name)] if name == "clicked" else [], labels=["clicked", "city"]).fit([rows])
        with pytest.raises(DataError, match=f"needs the label '{name}', which rows to be served do not have"):
            chosen.serving([name])
    lists = Workflow([ExplodeLists({"kinds": ("kind", "string")}, "place", ["row"]), Log("row")]).fit([rows])
    with pytest.raises(DataError, match=r"step 1 \(explode_lists\): makes 'kind' by changing the rows, which serving"):
        lists.serving(["kind"])
    assert lists.serving(["row"]).applied_inputs == ("row",)


def test_typed_takes_rows_as_another_reader_gives_them(rows):
    workflow = Workflow([Log("row", "x"), Categorify("city")], dtypes={"row": "int64", "city": "string"}).fit([rows])
    texts = rows.assign(row=rows["row"].astype("str"))
    found = workflow.transform(workflow.typed(texts))
    pd.testing.assert_frame_equal(found[["x", "city"]], workflow.transform(rows)[["x", "city"]])
    with pytest.raises(DataError, match="column 'row' is declared int64"):
        workflow.typed(rows.assign(row="three"))


def rewritten(folder, change):
    """The JSON changed and signed anew, as someone would who knows the format."""
    content = json.loads((folder / "workflow.json").read_text())
    change(content)
    content.pop("sha256", None)
    (folder / "workflow.json").write_text(json.dumps(content | {"sha256": _checksum(content)}))


def test_a_changed_file_is_refused(saved):
    text = (saved / "workflow.json").read_text()
    for content in ("", "{", "[]", "null", "[" * 100_000, '{"format": 1}', text[:-20], text.replace('"Oslo"', "1"),
                    text.replace('"num_buckets": 100', '"num_buckets": 101'), text.replace("{", '{"format": 1,', 1),
                    text.replace('"format": 1', '"format": 2'), text + "x"):  # fmt: skip
        if content != text:
            (saved / "workflow.json").write_text(content)
            with pytest.raises(DataError, match=r"workflow .*damaged \("):
                Workflow.load(saved)
    (saved / "workflow.json").unlink()
    with pytest.raises(DataError, match="damaged"):
        Workflow.load(saved)


def step_of(content, name):
    return next(step for step in content["steps"] if step["operator"] == name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: step_of(c, "log").update(operator="os"), "unknown operator 'os'"),
        (lambda c: step_of(c, "log").update(operator=["log"]), "expected an operator with settings"),
        (lambda c: step_of(c, "log").update(operator="base"), "unknown operator 'base'"),
        (lambda c: step_of(c, "log").update(extra=1), "expected the fields operator, settings, found"),
        (lambda c: step_of(c, "log").update(state=None), "expected the fields operator, settings, found"),
        (lambda c: step_of(c, "categorify").pop("state"), "expected the fields operator, settings, state, found"),
        (lambda c: step_of(c, "log")["settings"].update(base=2), "unknown argument 'base'"),
        (lambda c: step_of(c, "log")["settings"].update(column=2), "column: expected text, found 2"),
        (lambda c: step_of(c, "normalize").update(state=1.5), "state: expected "),
        (lambda c: step_of(c, "normalize").update(state=step_of(c, "quantile_buckets")["state"]), "unknown kind of "),
        (lambda c: c["files"].update({"../x.parquet": {"sha256": "", "bytes": 1}}), "is not the name of a file"),
        (lambda c: c.update(files=[]), "files: expected names"),
        (lambda c: c.update(steps={}), "expected a list, found dict"),
        (lambda c: c.update(labels=[1]), "expected a list of names"),
        (lambda c: c.update(dtypes={"a": "object"}), "unknown type 'object'"),
        (lambda c: c.update(more=1), "expected the fields"),
        (lambda c: c.pop("labels"), "expected the fields"),
    ],
)  # fmt: skip
def test_what_was_signed_anew_is_still_checked(saved, change, message):
    rewritten(saved, change)
    with pytest.raises(DataError, match=message):
        Workflow.load(saved)


def test_a_path_among_the_arguments_is_not_read(rows, tmp_path):
    cities = pd.DataFrame({"city": ["Oslo"], "height": [23.0]})
    Workflow([JoinExternal(cities, ["city"], {"height": "h"})]).fit([rows]).save(tmp_path / "w")
    cities.to_parquet(tmp_path / "other.parquet")
    rewritten(tmp_path / "w", lambda c: c["steps"][0]["settings"].update(table=str(tmp_path / "other.parquet")))
    with pytest.raises(DataError, match=r"table: expected a data frame, found"):
        Workflow.load(tmp_path / "w")


def places(value, path=()):
    """The path of every value inside a JSON value."""
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield from places(item, (*path, key))


def copied(workflow, tmp_path_factory):
    """A folder of the saved workflow to be damaged."""
    home = tmp_path_factory.getbasetemp()
    if not (home / "whole").exists():
        workflow.save(home / "whole")
    shutil.rmtree(home / "damaged", ignore_errors=True)
    return Path(shutil.copytree(home / "whole", home / "damaged"))


VALUES = st.sampled_from([None, True, 0, -1, 2**70, 0.5, float("nan"), "", "x", "../x", [], {}, [[]], {"frame": "x"}])


@settings(max_examples=examples(240), deadline=None)
@given(st.data())
def test_any_damage_is_refused_or_without_effect_unless_it_was_signed_anew(rows, whole, tmp_path_factory, data):
    folder = copied(whole, tmp_path_factory)
    path = data.draw(st.sampled_from(sorted(folder.iterdir())))
    content = path.read_bytes()
    kind = data.draw(st.sampled_from(["bytes", "remove", "replace", "replace and sign anew"]))
    if kind == "bytes":
        path.write_bytes(data.draw(damaged(content)))
    elif kind == "remove":
        path.unlink()
    else:
        replace_a_value(folder, data, signed=kind != "replace")
    try:
        found = Workflow.load(folder)
    except DataError:
        return
    if kind != "replace and sign anew":  # whoever knows the format may write another workflow
        pd.testing.assert_frame_equal(found.transform(rows), whole.transform(rows), check_exact=True)


def replace_a_value(folder, data, signed):
    content = json.loads((folder / "workflow.json").read_text())
    where = data.draw(st.sampled_from([path for path in places(content) if path]))
    inside = content
    for key in where[:-1]:
        inside = inside[key]
    if data.draw(st.booleans()) and isinstance(inside, dict):
        inside[data.draw(st.text(max_size=3))] = inside.pop(where[-1])
    else:
        inside[where[-1]] = data.draw(VALUES)
    if signed:
        content.pop("sha256", None)
        content["sha256"] = _checksum(content)
    (folder / "workflow.json").write_text(json.dumps(content))


def test_tomorrows_rows_are_asked_for_a_null_label_and_a_row_number():
    last = {"by": ["shop"], "at": "day", "known_at": "day", "order": "row_number",
            "aggregations": [{"last": {"columns": {"sales": "before"}}}]}  # fmt: skip
    dtypes = {"shop": "string", "day": "datetime", "sales": "float32"}
    workflow = Workflow(Workflow.from_steps([{"asof": last}]).steps, labels=["sales"], dtypes=dtypes)
    seen = pd.DataFrame({"shop": ["a", "b", "a"], "day": ["2024-06-01", "2024-06-01", "2024-06-02"],
                         "sales": [3.0, 5.0, 4.0]})  # fmt: skip
    workflow.fit([workflow.typed(seen.assign(row_number=range(3)))])
    tomorrow = pd.DataFrame({"shop": ["b", "a"], "day": "2024-06-03"})
    with pytest.raises(DataError, match=r"label is not known yet it is null: rows.assign\(sales=None\). .* after them"):
        workflow.typed(tomorrow)
    with pytest.raises(DataError, match="makes 'row_number': number the rows of the history"):
        workflow.typed(seen)
    rows = workflow.typed(tomorrow.assign(sales=None, row_number=[3, 4]))
    found = workflow.transform(rows, history=workflow.typed(seen.assign(row_number=range(3))))
    assert found["before"].tolist() == [5.0, 4.0]
