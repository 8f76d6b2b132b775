"""Every operator, every recipe and the preprocessor's whole way on checked frames, found by listing them.

An operator, a recipe or a public method of the preprocessor that nothing here runs fails the test.
"""

import contextlib
import inspect

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.encoding.settings import PreprocessorSettings
from gigabatch.features.engines.frame import load_engine
from gigabatch.features.errors import DataError
from gigabatch.features.operators import operator_class, operator_names
from gigabatch.features.operators.base import FittedOperator
from gigabatch.features.operators.rows.lambda_function import register_function
from gigabatch.features.recipes import RECIPES, recipe_class
from gigabatch.features.recipes.carrying import RowsSoFar
from gigabatch.features.schema import Column, ListColumn, Schema, Target
from gigabatch.features.synthetic.movielens import write_frappe, write_movielens
from gigabatch.features.synthetic.trivago import write_synthetic_log
from tests.cudf_api.checked import CheckedFrame
from tests.features.operators.hostile_cases import CASES, TABLE
from tests.features.operators.hostile_columns import FORMS

# Forms of a column that cuDF can hold too; the others are of Python's objects or of pandas alone.
HELD = ("masked_with_null", "whole_as_float", "whole_as_int16", "whole_category_reversed", "text_category_reversed",
        "text_all_null", "all_nan", "infinity", "flags_with_null", "moments_ns", "numbers_for_text")  # fmt: skip
KINDS = {"int64": "whole", "float64": "number", "str": "text"}


def test_every_operator_has_a_case():
    assert {case.operator for case in CASES} == set(operator_names())


def checked(value):
    """Arguments with their tables as cuDF would give them."""
    return CheckedFrame(value) if isinstance(value, pd.DataFrame) else value


def made(case):
    register_function(
        "hostile_copy", lambda frame: frame.rename(columns={"full": "copy"}), inputs=["full"], outputs=["copy"],
        replace=True,
    )  # fmt: skip
    return operator_class(case.operator)(**{name: checked(value) for name, value in case.arguments.items()})


def run(case, frame):
    operator = made(case)
    if not isinstance(operator, FittedOperator):
        return [operator(frame)]
    state = operator.fit([frame.iloc[:15], frame.iloc[15:15], frame.iloc[15:]])
    return [operator.apply(frame, state), operator.apply_to_train(frame, state)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_operator_uses_only_what_cudf_has(case):
    for found in run(case, CheckedFrame(TABLE)):
        assert isinstance(found, CheckedFrame)
    for column in case.roles:
        for form in HELD:
            if (kind := KINDS[str(TABLE[column].dtype)], form) in FORMS:
                hostile, _ = FORMS[kind, form](TABLE[column])
                with contextlib.suppress(DataError):  # which forms are refused is checked in tests/features
                    run(case, CheckedFrame(TABLE.assign(**{column: hostile})))


def flights(folder):
    return {}


def interactions(folder):
    write_frappe(folder, 20, 40)
    return {"path": str(folder / "frappe.csv"), "separator": "\t", "contexts": {"daytime": "string"}}


def movielens(folder):
    write_movielens(folder, "ml-1m", 30, 60)
    return {"path": str(folder), "genres": True}


def table(folder):
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"kind": rng.choice(["a", "b"], 400), "x": rng.normal(size=400), "y": rng.integers(0, 2, 400)})
    rows.to_csv(folder / "t.csv", index=False)
    targets = {"y": {"task": "binary"}}
    return {"path": str(folder / "t.csv"), "categorical": ("kind",), "continuous": ("x",), "targets": targets}


def trivago(folder):
    write_synthetic_log(folder, 3000)
    return {"path": str(folder)}


SETTINGS = {"flights": flights, "interactions": interactions, "movielens": movielens, "table": table,
            "trivago": trivago}  # fmt: skip


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_a_recipe_uses_only_what_cudf_has(name, tmp_path, monkeypatch):
    kind = recipe_class(name)
    recipe = kind(kind.Settings(**SETTINGS[name](tmp_path)))
    if name == "flights":
        raw = {key: CheckedFrame(value) for key, value in recipe.read("pandas").items()}
        raw["flights"] = CheckedFrame(pd.DataFrame(raw["flights"]).iloc[::100])
        monkeypatch.setattr(kind, "read", lambda self, engine, paths=None: raw)
    tables = recipe.build("pandas")
    assert all(isinstance(frame, CheckedFrame) for frame in tables.splits.values())


class KeptInMemory:
    """A `History` of checked frames: what one run left, for the next one, whose new files are those given.

    made: the finished rows, in place of the files that a run writes.
    """

    def __init__(self):
        self.left, self.new, self.made = None, [], None

    def find(self, paths, ordered, others=()):
        return None if self.left is None else (self.left, self.new)

    def refuse(self, reason):
        raise AssertionError(reason)

    def keep(self, open_rows, pasts, front, facts, made, computed, parts=()):
        assert all(isinstance(past.rows, CheckedFrame) for past in pasts.values())
        rows = self.made
        self.left = RowsSoFar(lambda: rows, open_rows, pasts, front, len(rows), facts)


def test_rows_with_a_history_are_carried_with_what_cudf_has(tmp_path, monkeypatch):
    kind = recipe_class("flights")
    recipe, whole = kind(kind.Settings()), None
    raw = {key: CheckedFrame(value) for key, value in recipe.read("pandas").items()}
    flights = pd.DataFrame(raw["flights"]).iloc[:4000]
    last = flights["time_hour"] >= flights["time_hour"].iloc[3000]
    recipe.history = KeptInMemory()
    for part, files in ((flights[~last], ["all"]), (flights[last], ["new"])):
        recipe.history.new = files
        raw["flights"] = CheckedFrame(part.reset_index(drop=True))
        monkeypatch.setattr(kind, "read", lambda self, engine, paths=None: raw)
        whole = recipe.build("pandas")
        together = pd.concat(whole.splits.values(), ignore_index=True)
        recipe.history.made = together.iloc[whole.finished.start : whole.finished.stop]
        whole.finished.keep([])
    assert all(isinstance(frame, CheckedFrame) for frame in whole.splits.values())
    assert sum(map(len, whole.splits.values())) == int(flights["arr_delay"].notna().sum())


SCHEMA = Schema(
    (
        Column("word", "categorical", "string"), Column("number", "categorical", "int64"),
        Column("x", "continuous", "float32"), Column("wide", "continuous", "float64"),
        Column("y", "target", "float32"), Column("price", "target", "float32"), Column("class", "target", "int32"),
        Column("w", "weight", "float32"), Column("group", "group", "string"),
    ),
    (Target("y", "binary"), Target("price", "regression"), Target("class", "multiclass", 3)),
)  # fmt: skip


LISTED = Schema(
    (Column("word", "categorical", "string"),), (),
    lists=(ListColumn("seen", shares="word", max_length=2), ListColumn("tags", "int64", weights="v")),
)  # fmt: skip


def rows(seed, size=60):
    rng = np.random.default_rng(seed)
    return CheckedFrame({
        "word": pd.Series(rng.choice(["a", "b", f"only {seed}", None], size)).astype("str"),
        "number": rng.integers(0, 5 + seed, size),
        "x": np.where(rng.random(size) < 0.2, np.nan, rng.normal(size=size)).astype("float32"),
        "wide": rng.normal(size=size), "y": rng.integers(0, 2, size).astype("float32"),
        "price": rng.normal(size=size).astype("float32"), "class": rng.integers(0, 3, size).astype("int32"),
        "w": rng.random(size).astype("float32"), "group": rng.choice(["g", "h"], size),
    })  # fmt: skip


def test_the_preprocessors_whole_way_uses_only_what_cudf_has(tmp_path, monkeypatch):
    called = set()
    public = {name: value for name, value in vars(Preprocessor).items()
              if not name.startswith("_") and inspect.isfunction(value)}  # fmt: skip
    for name, function in public.items():

        def recorded(self, *args, _name=name, _function=function, **kwargs):
            called.add(_name)
            return _function(self, *args, **kwargs)

        monkeypatch.setattr(Preprocessor, name, recorded)
    path = tmp_path / "part.parquet"
    load_engine("pandas").write_parquet(rows(1), path)
    fitted = Preprocessor(SCHEMA).fit([rows(1).iloc[:30], rows(1).iloc[30:]])
    packed = Preprocessor(SCHEMA).fit_pack([rows(1).iloc[:30], rows(1).iloc[30:]])
    of_files = Preprocessor(SCHEMA).fit_pack([("pandas", path)])
    assert [len(part) for part in packed] == [30, 30]
    assert np.array_equal(np.concatenate(packed)[:, :-1], of_files[0][:, :-1])  # groups are numbered within a part
    assert len(fitted.transform(rows(2))) == 60
    trees = [Preprocessor(SCHEMA, PreprocessorSettings(bins=4, edges="tree")) for _ in range(2)]
    trees[0].fit([rows(1).iloc[:30], rows(1).iloc[30:]])
    trees[1].fit_pack([("pandas", path)])
    assert trees[0].edges == trees[1].edges != fitted.edges
    fitted.update([rows(2).iloc[:20], ("pandas", path)], refresh_scales=True)
    carried = fitted.carried_to(SCHEMA, fitted.settings)
    fitted.grow([rows(3).iloc[:20], ("pandas", path)])
    packed, _ = carried.grow_pack([rows(3).iloc[:20], ("pandas", path)])
    assert [len(part) for part in packed] == [20, 60]
    assert carried.checksum == fitted.checksum
    fitted.save(tmp_path / "saved")
    loaded = Preprocessor.load(tmp_path / "saved")
    assert np.array_equal(loaded.pack(rows(3)), fitted.pack(loaded.read(rows(3))))
    listed = CheckedFrame({"word": ["a", "b"], "seen": [["b", None, "c"], []], "tags": [[1], None], "v": [[0.5], None]})
    history, tags = Preprocessor(LISTED).fit([listed]).pack_lists(listed)
    assert (history.ids.tolist(), history.offsets.tolist()) == ([3, 5], [0, 2, 2])
    assert (tags.ids.tolist(), tags.weights.tolist()) == ([3], [0.5])
    assert called == set(public)
