"""Schemas go to JSON and back, and refuse what makes no sense."""

import pytest

from gigabatch.features.errors import DataError
from gigabatch.features.schema import Column, IdColumn, Schema, Target, TensorSchema

SCHEMA = Schema(
    (
        Column("c", "categorical", "string"),
        Column("x", "continuous", "float32"),
        Column("y", "target", "float32"),
        Column("kind", "target", "int32"),
        Column("w", "weight", "float32"),
        Column("g", "group", "int64"),
        Column("t", "time", "int64"),
        Column("k", "key", "int64"),
    ),
    (Target("y", "binary"), Target("kind", "multiclass", 3, ("a", "b", "c"))),
)


def test_schema_survives_json_and_a_file(tmp_path):
    SCHEMA.save(tmp_path / "schema.json")
    assert Schema.load(tmp_path / "schema.json") == Schema.from_json(SCHEMA.to_json()) == SCHEMA


def test_names_by_role_keep_their_order():
    assert SCHEMA.names("categorical", "continuous", "target") == ["c", "x", "y", "kind"]
    assert SCHEMA.names() == ["c", "x", "y", "kind", "w", "g", "t", "k"]
    assert SCHEMA.only("weight") == "w"
    assert Schema((), ()).only("weight") is None
    assert SCHEMA.dtypes()["g"] == "int64"


@pytest.mark.parametrize(
    ("columns", "targets", "message"),
    [
        ([Column("a", "key", "int64"), Column("a", "time", "int64")], [], r"a \(key and time\) listed twice"),
        (
            [Column("e", "continuous", "float32"), Column("e", "weight", "float32")],
            [],
            r"e \(continuous and weight\) listed twice. A column has one role: take it out of the others",
        ),
        ([Column("a", "label", "int64")], [], "unknown role 'label'. Known: categorical"),
        ([Column("a", "target", "float32")], [], "targets .* differ"),
        ([], [Target("a", "binary")], "targets .* differ"),
        ([Column("a", "time", "int64"), Column("b", "time", "int64")], [], "at most one column of role time"),
    ],
)
def test_a_schema_that_makes_no_sense_is_an_error(columns, targets, message):
    with pytest.raises(DataError, match=message):
        Schema(tuple(columns), tuple(targets))


ROLES = {"categorical": "string", "continuous": "float32", "target": "float32", "weight": "float32", "group": "int64"}


@pytest.mark.parametrize("role", ROLES)
def test_a_word_of_a_row_that_has_the_name_of_an_indicator_is_refused_naming_both(role):
    """F1: two words had one place, and the other one was whatever memory held."""
    columns = [Column("age", "continuous", "float32"), Column("age_na", role, ROLES[role])]
    targets = [Target("age_na", "binary")] if role == "target" else []
    with pytest.raises(DataError, match=f"{role} column 'age_na' and the indicator of nulls in column 'age'"):
        Schema(tuple(columns), tuple(targets))


def test_a_column_that_no_model_reads_may_have_any_name():
    columns = Column("age", "continuous", "float32"), Column("age_na", "key", "string"), Column("b", "time", "int64")
    assert Schema(columns, ()).names() == ["age", "age_na", "b"]
    words = Column("city", "categorical", "string"), Column("city_na", "continuous", "float32")
    assert Schema(words, ()).names() == ["city", "city_na"]


@pytest.mark.parametrize("kind", ["key", "time", "group"])
def test_predictions_that_would_overwrite_each_other_or_a_key_are_refused(kind):
    columns = [Column("a", "target", "int32"), Column("a_b", "target", "int32")]
    targets = [Target("a", "multiclass", 2, ("b_c", "d")), Target("a_b", "multiclass", 2, ("c", "d"))]
    with pytest.raises(DataError, match="target 'a' and a prediction of target 'a_b' have one name, 'predicted_a_b_c'"):
        Schema(tuple(columns), tuple(targets))
    beside = [Column("predicted_y", kind, "int64"), Column("y", "target", "float32")]
    with pytest.raises(DataError, match=r"the column 'predicted_y' .* and a prediction of target 'y'"):
        Schema(tuple(beside), (Target("y", "binary"),))


@pytest.mark.parametrize(
    ("first", "kind", "name"),
    [
        (Target("k", "multiclass", 2, ("red", "blue")), "int32", "k_red"),
        (Target("k", "regression", 2, quantiles=(0.1, 0.9)), "float32", "k_q0.9"),
    ],
)
def test_a_target_of_classes_that_has_the_name_of_a_prediction_is_refused_naming_both(first, kind, name):
    """Its likeliest class is given under its own name."""
    columns = Column("k", "target", kind), Column(name, "target", "int32")
    told = f"a prediction of target 'k' and the likeliest class of target '{name}' have one name, '{name}'"
    with pytest.raises(DataError, match=told):
        Schema(columns, (first, Target(name, "multiclass", 2, ("a", "b"))))
    assert Schema(columns, (first, Target(name, "multiclass", 2))).names("target") == ["k", name]


@pytest.mark.parametrize(
    ("ids", "floats", "targets"),
    [(["x"], ["x"], []), ([], ["x", "x"], []), (["y"], [], ["y"]), ([], ["y"], ["y"]), (["x", "x"], [], [])],
)
def test_a_tensor_schema_names_each_word_once(ids, floats, targets):
    columns = tuple(IdColumn(name, 9) for name in ids)
    with pytest.raises(DataError, match=r"tensor schema: the .* have one name"):
        TensorSchema(columns, tuple(floats), tuple(Target(name, "binary") for name in targets))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("y", "ranking"), "unknown task 'ranking'. Known: binary"),
        (("y", "binary", 2), "a binary target has one output, not 2"),
        (("y", "multiclass", 3, ("a", "b")), "3 outputs but 2 class names"),
        (("y", "multiclass", 3, ("a", "b", "a")), "'a' are there twice"),
    ],
)
def test_a_target_that_makes_no_sense_is_an_error(arguments, message):
    with pytest.raises(DataError, match=message):
        Target(*arguments)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"columns": [{"nam": "a"}], "targets": []}'])
@pytest.mark.parametrize("kind", [Schema, TensorSchema])
def test_damaged_json_is_an_error(kind, text):
    with pytest.raises(DataError, match=r"schema is damaged"):
        kind.from_json(text)


def test_tensor_schema_counts_words_and_outputs_and_survives_json():
    schema = TensorSchema((IdColumn("c", 9),), ("x", "x_na"), SCHEMA.targets, has_weight=True, has_group=True)
    assert schema.num_words == 1 + 2 + 2 + 1 + 1
    assert schema.num_outputs == 1 + 3
    assert TensorSchema.from_json(schema.to_json()) == schema
