"""Side tables of the recipe interactions: columns of users and items from files of their own."""

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.errors import DataError
from gigabatch.features.recipes.interactions.recipe import InteractionsRecipe, InteractionsSettings
from gigabatch.features.recipes.interactions.side_tables import SideTable
from gigabatch.features.schema import Entity, ListColumn
from tests.features.interaction_logs import COLUMNS, all_rows, build, make_log


@pytest.fixture
def log():
    return make_log()


@pytest.fixture
def sides(log, tmp_path):
    items = pd.DataFrame({"id": sorted(set(log["what"]))})
    items["brand"] = [f"b{n % 7}" for n in range(len(items))]
    items["weight"] = np.arange(len(items)) / 4
    items["words"] = [["Red|Small", "small|Sci-Fi", "", "Red"][n % 4] for n in range(len(items))]
    items["serial"] = 2**53 + 1 + np.arange(len(items))  # no float holds these apart
    items.to_csv(tmp_path / "items.csv", index=False)
    users = pd.DataFrame({"who": sorted(set(log["who"]))[1:]})
    users["born"] = 1950 + np.arange(len(users)) % 50
    users.to_csv(tmp_path / "users.txt", index=False, header=False, sep="|")
    return (
        {
            "item": SideTable(
                str(tmp_path / "items.csv"), "id", {"brand": "string", "serial": "int64"}, ("weight",), ("words",)
            ),
            "user": SideTable(
                str(tmp_path / "users.txt"), categorical={"born": "int64"}, separator="|", column_names=("who", "born")
            ),
        },
        items,
        users,
    )


def test_text_that_counts_as_null_is_told_of(log, tmp_path):
    users = pd.DataFrame({"who": sorted(set(log["who"]))})
    users["country"] = [["DE", "NA", "NO", ""][n % 4] for n in range(len(users))]
    users.to_csv(tmp_path / "users.csv", index=False)
    side = {"user": SideTable(str(tmp_path / "users.csv"), categorical=("country",))}
    told = "'country' is null in {} of 150 rows, where it is empty or 'NA' (features.null_values)."
    assert len(users) == 150
    by_default = build(tmp_path, log, side_tables=side)
    assert any(note.endswith(told.format(75)) for note in by_default.notes)
    tables = build(tmp_path, log, side_tables=side, null_values=("",))
    assert not any("null_values" in note for note in tables.notes)
    rows = all_rows(tables)
    wanted = users.set_index("who")["country"][rows["who"]]
    assert rows["country"].fillna("").tolist() == wanted.tolist()
    assert (wanted == "NA").any()


def test_side_tables_are_looked_up_by_key(log, sides, tmp_path):
    tables_of, items, users = sides
    tables = build(tmp_path, log.assign(items="x"), contexts=("hour",), side_tables=tables_of)
    assert tables.schema.entities == (
        Entity("user", "who", ("who", "born")),
        Entity(
            "item",
            "what",
            ("what", "brand", "serial", "weight", "words_red", "words_sci_fi", "words_small", "words_small_2"),
        ),
    )
    rows = all_rows(tables)
    by_item, by_user = items.set_index("id"), users.set_index("who")["born"]
    assert rows["brand"].tolist() == by_item["brand"][rows["what"]].tolist()
    assert rows["weight"].tolist() == by_item["weight"][rows["what"]].tolist()
    for word, name in (("Red", "words_red"), ("Sci-Fi", "words_sci_fi")):
        expected = [word in text.split("|") for text in by_item["words"][rows["what"]]]
        np.testing.assert_array_equal(rows[name], np.array(expected, "float32"))
    assert str(rows["serial"].dtype) == "Int64"
    assert rows["serial"].tolist() == by_item["serial"][rows["what"]].tolist()
    known = rows["who"].isin(by_user.index)
    assert rows["born"].isna().tolist() == (~known).tolist()
    assert rows["born"][known].astype(int).tolist() == by_user[rows["who"][known]].tolist()
    missing = int((~known).sum())
    assert any(
        n.startswith(f"{missing} rows have a user that") and "users.txt does not list" in n for n in tables.notes
    )
    assert InteractionsRecipe(
        InteractionsSettings(path=str(tmp_path / "log.csv"), side_tables=tables_of, **COLUMNS)
    ).inputs() == [str(tmp_path / name) for name in ("log.csv", "items.csv", "users.txt")]


def test_raw_rows_are_those_of_the_features_stage(log, sides, tmp_path):
    settings = {"contexts": ("place",), "continuous": ("price",), "side_tables": sides[0]}
    tables = build(tmp_path, log, **settings)
    recipe = InteractionsRecipe(InteractionsSettings(path=str(tmp_path / "log.csv"), **settings, **COLUMNS))
    log.drop(columns=["stars", "when"]).to_csv(tmp_path / "new.csv", index=False)
    serving = tables.workflow.serving(tables.schema.names("categorical", "continuous"))
    found = recipe.raw_rows("pandas", str(tmp_path / "new.csv"), serving.applied_inputs)
    expected = all_rows(tables).sort_values("row_number").reset_index(drop=True)
    features = serving.transform(serving.typed(found))[tables.schema.names("categorical", "continuous")]
    pd.testing.assert_frame_equal(features, expected[features.columns])
    assert found["row_number"].tolist() == list(range(len(log)))


def test_large_whole_numbers_of_a_side_table_stay_exact_beside_keys_that_it_lacks(log, sides, tmp_path):
    items = sides[1].iloc[10:]
    items.to_csv(tmp_path / "items.csv", index=False)
    rows = all_rows(build(tmp_path, log, side_tables={"item": sides[0]["item"]}))
    known = rows["what"].isin(items["id"])
    assert rows["serial"].isna().tolist() == (~known).tolist()
    assert rows["serial"][known].tolist() == items.set_index("id")["serial"][rows["what"][known]].tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda items: pd.concat([items, items.head(1)]), r"items\.csv: 1 duplicate key\(s\).*'i0'"),
        (lambda items: items.rename(columns={"brand": "hour"}), r"items\.csv: column\(s\) 'brand' not found"),
        (lambda items: items.assign(id=items["id"].where(items["id"] != "i0")), r"'id' is null in 1 of 60.*items"),
    ],
)
def test_side_tables_that_cannot_be_right_are_errors(log, sides, tmp_path, change, message):
    change(sides[1]).to_csv(tmp_path / "items.csv", index=False)
    with pytest.raises(DataError, match=message):
        build(tmp_path, log, side_tables={"item": sides[0]["item"]})


def test_a_side_column_that_the_interactions_have_too_is_an_error(log, sides, tmp_path):
    sides[1].rename(columns={"brand": "hour"}).to_csv(tmp_path / "items.csv", index=False)
    side = SideTable(str(tmp_path / "items.csv"), "id", ("hour",))
    with pytest.raises(DataError, match=r"items\.csv: column 'hour' is a column of the interactions too"):
        build(tmp_path, log, contexts=("hour",), side_tables={"item": side})


@pytest.mark.parametrize(
    ("sides", "message"),
    [
        ({"item": {"key": "id", "categorical": ("what",)}}, "'what' is the name that its key 'id' takes"),
        ({"item": {"key": "id", "continuous": ("what",)}}, "'what' is the name that its key 'id' takes"),
        ({"user": {"key": "id", "flags": ("who",)}}, "'who' is the name that its key 'id' takes"),
        ({"item": {"continuous": ("what",)}}, "column 'what' is its key"),
        ({"user": {"key": "who", "flags": ("who",)}}, "'who' is named under key and again under flags"),
        ({"item": {"categorical": ("who",)}}, "column 'who' is a column of the interactions too"),
        ({"item": {"categorical": ("when",)}}, "column 'when' is a column of the interactions too"),
        ({"item": {"continuous": ("hour",)}}, "column 'hour' is a column of the interactions too"),
        ({"item": {"continuous": ("row_number",)}}, "column 'row_number' is a column of the interactions too"),
        (
            {"user": {"categorical": ("town",)}, "item": {"continuous": ("town",)}},
            r"side table item\.csv: column 'town' is a column of the side table user\.csv too",
        ),
    ],
)
def test_two_columns_of_one_name_are_refused_before_any_file_is_read(sides, message):
    def settings() -> InteractionsSettings:
        tables_of = {entity: SideTable(f"{entity}.csv", **arguments) for entity, arguments in sides.items()}
        return InteractionsSettings(path="log.csv", contexts=("hour",), side_tables=tables_of, **COLUMNS)

    with pytest.raises(DataError, match=message):
        settings()


def test_the_key_may_be_named_among_the_categorical_columns(log, sides, tmp_path):
    side = SideTable(str(tmp_path / "items.csv"), "id", ("id", "brand"))
    rows = all_rows(build(tmp_path, log, side_tables={"item": side}))
    assert rows["brand"].tolist() == sides[1].set_index("id")["brand"][rows["what"]].tolist()


@pytest.mark.parametrize(
    ("columns", "named", "message"),
    [
        (
            {"words_red": "x", "words": "Red"}, {"categorical": ("words_red",), "flags": ("words",)},
            "a word of 'words' makes the column 'words_red', which is a column of that table already",
        ),
        (
            {"a": "B_c|d", "a_b": "C"}, {"flags": ("a", "a_b")},
            "a word of 'a_b' makes the column 'a_b_c', which is made of a word of 'a' already",
        ),
        (
            {"a": "B", "a_b": "C"}, {"flags": ("a", "a_b")},
            "a word of 'a' makes the column 'a_b', which is a column of that table already",
        ),
        (
            {"ho": "X", "h": "our"}, {"categorical": ("ho",), "flags": ("h",)},
            "column 'h_our' is a column of the interactions or of another side table too",
        ),
    ],
)  # fmt: skip
def test_a_word_that_makes_a_column_there_is_already_is_an_error(log, tmp_path, columns, named, message):
    items = pd.DataFrame({"id": sorted(set(log["what"]))}).assign(**columns)
    items.to_csv(tmp_path / "items.csv", index=False)
    side = SideTable(str(tmp_path / "items.csv"), "id", **named)
    with pytest.raises(DataError, match=message):
        build(tmp_path, log.rename(columns={"hour": "h_our"}), contexts=("h_our",), side_tables={"item": side})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "no column is named"),
        ({"categorical": {"c": "bool"}}, "side table s.csv: categorical column 'c' has type 'bool'"),
        (
            {"categorical": ("c",), "continuous": ("c",)},
            "side table s.csv: column 'c' is named under categorical and again under continuous",
        ),
        ({"continuous": ("c", "c")}, "'c' is named under continuous and again under continuous"),
        ({"flags": ("c",), "lists": {"c": {}}}, "'c' is named under flags and again under lists"),
        ({"lists": {"c": {"weights": "d"}, "d": {}}}, "'d' is named under lists and again under lists"),
        ({"lists": {"c": {"length": 5}}}, "side table s.csv: lists.c: unknown key.s. length. Known: elements, shares"),
        ({"lists": {"c": {"elements": "bool"}}}, "'c' has elements of type 'bool'"),
        ({"lists": {"c": {}}, "list_separator": ""}, "list_separator is text that is not empty, found ''"),
    ],
)
def test_a_side_table_without_sense_is_an_error(arguments, message):
    with pytest.raises(DataError, match=message):
        SideTable("s.csv", **arguments)


@pytest.fixture
def films(log):
    """Lists of the items, but for one that no side table has."""
    ids = sorted(set(log["what"]))[1:]
    genres = [["rock", "pop", None, "jazz"][: place % 5] for place in range(len(ids))]
    genres[7] = None
    return pd.DataFrame(
        {"id": ids, "genres": genres, "share": [None if row is None else [0.5] * len(row) for row in genres]}
    )


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_lists_of_a_side_table_are_looked_up_by_key(log, films, tmp_path, kind):
    path, lists = tmp_path / f"films.{kind}", {"genres": {"weights": "share", "max_length": 2}}
    if kind == "parquet":
        films.to_parquet(path)
    else:
        texts = {name: ["/".join("" if v is None else str(v) for v in row or ()) for row in films[name]]
                 for name in ("genres", "share")}  # fmt: skip
        films.assign(**texts).to_csv(path, index=False)
    side = SideTable(str(path), "id", lists=lists, list_separator="/")
    settings = {"contexts": ("place",), "continuous": ("price",), "side_tables": {"item": side}}
    tables = build(tmp_path, log, **settings)
    assert tables.schema.lists == (ListColumn("genres", weights="share", max_length=2),)
    assert tables.schema.entity("item").columns == ("what", "genres")
    rows, known = all_rows(tables), films.set_index("id")
    for name in ("genres", "share"):
        wanted = [(known[name].get(item) if item in known.index else None) or [] for item in rows["what"]]
        assert [[] if row is None or row is pd.NA else list(row) for row in rows[name]] == wanted
    preprocessor = Preprocessor(tables.schema).fit([tables.splits["train"]])
    (packed,) = preprocessor.pack_lists(rows)
    values = preprocessor.vocabularies["genres"].values.tolist()
    ids = {value: place for place, value in enumerate(values, 3)}
    by_row = np.split(packed.ids, packed.offsets[1:-1])
    for row, item in zip(by_row, rows["what"], strict=True):
        genres = (known["genres"].get(item) if item in known.index else None) or []
        assert row.tolist() == [ids[one] for one in genres if one is not None][-2:]
    # Rows to be scored look them up too.
    log.drop(columns=["stars", "when"]).to_csv(tmp_path / "new.csv", index=False)
    features = [*tables.schema.names("categorical", "continuous"), "genres", "share"]
    serving = tables.workflow.serving(features)
    recipe = InteractionsRecipe(InteractionsSettings(path=str(tmp_path / "log.csv"), **settings, **COLUMNS))
    found = serving.transform(
        serving.typed(recipe.raw_rows("pandas", str(tmp_path / "new.csv"), serving.applied_inputs))
    )
    expected = rows.sort_values("row_number").reset_index(drop=True)
    pd.testing.assert_frame_equal(found[features], expected[features])


@pytest.mark.parametrize("kind", ["parquet", "csv"])
@pytest.mark.parametrize("shared", ["what", "hour", "born"])
def test_a_list_has_the_type_of_the_column_of_another_table_that_it_shares(log, tmp_path, kind, shared):
    log = log.assign(what=log["what"].astype("category").cat.codes.astype("int64"))
    log["who"] = log["who"].astype("category").cat.codes.astype("int64")
    pd.DataFrame({"who": range(200), "born": np.arange(200) % 24}).to_csv(tmp_path / "users.csv", index=False)
    items = pd.DataFrame({"what": range(log["what"].max() + 1)})
    near = [[one, (one + 1) % 5] for one in items["what"]]
    path = tmp_path / f"items.{kind}"
    if kind == "parquet":
        items.assign(near=near).to_parquet(path)
    else:
        items.assign(near=["|".join(map(str, row)) for row in near]).to_csv(path, index=False)
    sides = {
        "user": SideTable(str(tmp_path / "users.csv"), categorical={"born": "int64"}),
        "item": SideTable(str(path), lists={"near": {"shares": shared}}),
    }
    tables = build(tmp_path, log, id_type="int64", contexts={"hour": "int64"}, side_tables=sides)
    (column,) = tables.schema.lists
    assert (column.shares, column.elements) == (shared, "int64")
    rows = all_rows(tables)
    assert [list(row) for row in rows["near"]] == [near[item] for item in rows["what"]]


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ({"genres": {"elements": "int64"}}, "column 'genres' is declared list.int64"),
        ({"genres": {"shares": "brand"}}, "shares the vocabulary of 'brand', which is none of these"),
        ({"genres": {"weights": "few"}}, "row 1 has 1 elements in list column 'genres' and 2 weights in 'few'"),
    ],
)
def test_lists_of_a_side_table_that_cannot_be_are_errors(log, films, tmp_path, lists, message):
    films["few"] = [[0.5, 0.5]] * len(films)
    films.loc[[0, 7], "few"] = None
    films.to_parquet(tmp_path / "films.parquet")
    with pytest.raises(DataError, match=message):
        build(tmp_path, log, side_tables={"item": SideTable(str(tmp_path / "films.parquet"), "id", lists=lists)})


@pytest.mark.parametrize("role", ["flags", "categorical", "continuous"])
def test_lists_under_another_role_are_told_where_they_belong(log, films, tmp_path, role):
    films.to_parquet(tmp_path / "films.parquet")
    side = SideTable(str(tmp_path / "films.parquet"), "id", **{role: ("genres",)})
    with pytest.raises(
        DataError, match=r"column 'genres' .*it holds lists, and a column of lists is named under lists"
    ):
        build(tmp_path, log, side_tables={"item": side})
