"""Logs of users who choose items: what `init` writes of them, beside pandas."""

import re

import numpy as np
import pandas as pd
import pytest
import yaml

from gigabatch import init, recommend
from gigabatch.features.errors import DataError
from gigabatch.pipeline.config.config import load_config
from gigabatch.pipeline.init.interactions import draft_interactions
from gigabatch.pipeline.stages.stages import Pipeline

USERS, ITEMS, ROWS = 80, 30, 1200


def log(seed=0, rows=ROWS, **columns):
    """Ratings of films without a pair twice, in no order of time."""
    draw = np.random.default_rng(seed)
    pairs = draw.permutation(USERS * ITEMS)[:rows]
    found = pd.DataFrame({"userId": pairs // ITEMS + 1, "movieId": pairs % ITEMS + 500})
    found["rating"] = draw.integers(1, 6, rows)
    found["timestamp"] = 1_600_000_000 + draw.permutation(rows) * 3600
    return found.assign(**columns)


def written(folder, rows, name="ratings.csv", **options):
    path = folder / name
    rows.to_csv(path, index=False, **options)
    return str(path)


def read(path):
    return load_config(yaml.safe_load(path.read_text()))


def uncommented(text):
    return re.sub(r"^(  )# (?=[a-z_]+: )", r"\1", text, flags=re.MULTILINE)


def test_the_file_trains_on_what_each_user_chose_but_the_last_two(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = log()
    out, _ = init(written(tmp_path, rows))
    assert out.name == "ratings.yaml"
    found = yaml.safe_load(out.read_text())["features"]
    assert {name: found[name] for name in ("user", "item", "id_type", "time", "time_type", "rating")} == {
        "user": "userId", "item": "movieId", "id_type": "int64", "time": "timestamp", "time_type": "datetime[s]",
        "rating": "rating",
    }  # fmt: skip
    splits = Pipeline.from_config(str(out), {"train.epochs": 1}).features().artifact.path
    ordered = rows.sort_values("timestamp")
    last = ordered.groupby("userId").tail(1)
    test = pd.read_parquet(splits / "test")
    assert set(zip(test["userId"], test["movieId"], strict=True)) == set(
        zip(last["userId"], last["movieId"], strict=True)
    )


def test_lines_in_comments_are_settings_of_the_recipe(tmp_path):
    rows = log()
    rows["year"] = 1950 + rows["movieId"] % 7 * 10
    rows["kind"] = np.where(rows["movieId"] % 3 == 0, "drama", "comedy")
    rows["age"] = rows["userId"] % 50
    rows["device"] = np.random.default_rng(1).choice(["tv", "web"], len(rows))
    rows["title"] = "Film " + rows["movieId"].astype(str)
    out, made = init(written(tmp_path, rows), out=tmp_path / "a.yaml")
    assert "title" in made.left_out
    assert "Recommending then asks for device." in out.read_text()
    (tmp_path / "b.yaml").write_text(uncommented(out.read_text()))
    chosen = read(tmp_path / "b.yaml").features
    assert (chosen.threshold, chosen.split_by) == (3.0, "time")
    assert chosen.contexts == {"kind": "string", "device": "string"}
    assert chosen.continuous == ("year", "age")
    assert (chosen.item_columns, chosen.user_columns) == (("year", "kind"), ("age",))
    pipeline = Pipeline.from_config(str(tmp_path / "b.yaml"), {"artifacts": str(tmp_path / "artifacts")})
    told = pipeline.features().artifact
    positives = len(pd.read_parquet(told.path / "train"))
    assert 0 < positives <= int((rows["rating"] >= 3).sum())


@pytest.mark.parametrize(
    ("ids", "id_type"),
    [
        (lambda k: f"u{k}", "string"),
        (lambda k: f"{k:04d}", "string"),
        (lambda k: 2**62 + k, "string"),
        (lambda k: k, "int64"),
    ],
)
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_ids_stay_what_they_are(tmp_path, ids, id_type, ending):
    """19 digits may be beyond int64 in a later row of a CSV file, and are within it in a Parquet file of int64."""
    rows = log()
    rows["userId"] = rows["userId"].map(ids)
    path = tmp_path / f"log.{ending}"
    rows.to_csv(path, index=False) if ending == "csv" else rows.to_parquet(path)
    made = draft_interactions(str(path), None, None, 10_000)
    assert made.features["id_type"] == ("int64" if ending == "parquet" and rows["userId"].dtype == "int64" else id_type)


def test_of_two_labels_the_lower_is_no_choice(tmp_path):
    rows = log()
    rows["clicked"] = rows["rating"] % 2
    made = draft_interactions(written(tmp_path, rows.drop(columns="rating")), None, None, 10_000)
    assert made.features["rating"] == "clicked"
    assert made.features["threshold"] == 1.0
    assert made.role_notes["threshold"].startswith(f"{int((rows['clicked'] == 0).sum()):,} rows of 0 ")


def test_columns_of_any_name_are_given(tmp_path):
    rows = log().rename(columns={"userId": "s", "movieId": "d"})
    path = written(tmp_path, rows)
    with pytest.raises(DataError, match=r"no column's name says that it holds users. Give --target, .* --user and"):
        draft_interactions(path, None, None, 10_000)
    made = draft_interactions(path, "s", "d", 10_000)
    assert (made.features["user"], made.features["item"]) == ("s", "d")


def test_written_days_are_times_and_few_users_are_split_by_them(tmp_path):
    rows = log().drop(columns="rating")
    rows["userId"] %= 20
    rows = rows.drop_duplicates(["userId", "movieId"])
    days = pd.to_datetime(rows.pop("timestamp"), unit="s")
    rows["day"] = days.dt.strftime("%d.%m.%Y")
    out, _ = init(written(tmp_path, rows, sep=";"), out=tmp_path / "a.yaml")
    chosen = read(out).features
    assert (chosen.time, chosen.time_type, chosen.split_by, chosen.separator) == (
        "day", "datetime[%d.%m.%Y]", "time", ";"
    )  # fmt: skip


def test_what_may_be_wrong_in_how_times_are_read_is_said(tmp_path):
    """By a wrong order of day and month other rows are the last of each user, and nothing told of it."""
    days = pd.date_range("2023-01-01", periods=400).to_series()
    days = days[days.dt.day <= 12].dt.strftime("%d/%m/%Y")
    made = draft_interactions(
        written(tmp_path, log(timestamp=days.sample(ROWS, replace=True).tolist())), None, None, 10_000
    )
    assert made.features["time_type"] == "datetime[%m/%d/%Y]"
    said = "In timestamp day and month could be either in all rows looked at; the month is taken to stand first."
    assert any(remark.startswith(said) and remark.endswith("under time_type.") for remark in made.remarks), made.remarks


def test_numbers_that_are_times_by_their_size_are_said_to_be(tmp_path):
    rows = log().rename(columns={"timestamp": "x"})
    rows["x"] *= 1000
    made = draft_interactions(written(tmp_path, rows), None, None, 10_000)
    assert made.features["time"] == "x"
    said = "The numbers of x are taken for ms since 1970 by their size alone (2020-09-13 to 2020-11-02)."
    assert any(remark.startswith(said) and "take time and time_type out" in remark for remark in made.remarks), (
        made.remarks
    )


def test_a_few_repeats_are_said(tmp_path):
    rows = pd.concat([log(), log().head(100)])
    made = draft_interactions(written(tmp_path, rows), None, None, 10_000)
    assert any(remark.startswith("8% of the rows looked at repeat a userId and movieId") for remark in made.remarks)
    assert made.proposed_settings["repeats"] == "all"
    assert "repeats" not in made.features
    assert made.training["model"]["kind"] != "top_frequency"


def test_without_times_and_of_a_catalogue_that_it_can_hold_the_model_is_ease(tmp_path, monkeypatch):
    timed, rows = written(tmp_path, log()), log().drop(columns="timestamp")
    path = written(tmp_path, rows, "untimed.csv")
    made = [draft_interactions(name, None, None, 10_000) for name in (timed, path)]
    assert [found.training["model"]["kind"] for found in made] == ["mf", "ease"]
    assert any("--models 'ease, mf, item_knn, two_tower'" in remark for remark in made[1].remarks)
    assert draft_interactions(path, None, None, 200).training["model"]["kind"] == "mf"  # more items may be in the rest
    monkeypatch.setattr("gigabatch.pipeline.init.interactions.MOST_EASE_ITEMS", rows["movieId"].nunique() - 1)
    assert draft_interactions(path, None, None, 10_000).training["model"]["kind"] == "mf"


def test_copies_of_rows_are_no_users_who_come_back(tmp_path):
    """As many at another moment are, and where nothing says when."""
    moments = log().assign(timestamp=lambda rows: rows["timestamp"] + 5)
    for again, without, come_back in ((log(), (), False), (moments, (), True), (log(), ("timestamp",), True)):
        rows = pd.concat([log(), again.head(400)]).drop(columns=list(without))
        made = draft_interactions(written(tmp_path, rows), None, None, 10_000)
        assert (made.features.get("repeats") == "all") == come_back
        assert (made.training["model"]["kind"] == "top_frequency") == come_back


def test_where_users_come_back_what_they_chose_most_is_asked_about_and_recommended(tmp_path, monkeypatch):
    """Each user has two shops of their own, and goes now and then to another one."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    rows = pd.DataFrame({"customer_id": np.repeat(np.arange(60), 20), "visited_at": 1_700_000_000})
    own = np.where(draw.random(len(rows)) < 0.7, rows["customer_id"] * 2 % 50, rows["customer_id"] * 2 % 50 + 1)
    rows["shop_id"] = np.where(draw.random(len(rows)) < 0.85, own, draw.integers(0, 50, len(rows)))
    rows["visited_at"] += draw.permutation(len(rows)) * 3600
    out, _ = init(written(tmp_path, rows, "visits.csv"), user="customer_id", item="shop_id")
    assert "repeats: all" in out.read_text()
    run = Pipeline.from_config(str(out)).train()
    own = run.summary["ranking"]["catalogue"]["ndcg@10"]
    others = {item["name"]: item["catalogue"]["ndcg@10"] for item in run.summary["ranking"]["baselines"]["found"]}
    assert own > 0.7 > max(others.values()) - 0.05
    assert set(others) == {"popularity", "item k-nearest neighbours", "EASE"}
    trained = pd.read_parquet(Pipeline.from_config(str(out)).features().artifact.path / "train")
    most = trained.groupby("customer_id")["shop_id"].agg(lambda shops: shops.value_counts().max())
    first = recommend(str(out), k=1)
    counts = trained.groupby(["customer_id", "shop_id"]).size()
    assert all(counts[row.customer_id, row.shop_id] == most[row.customer_id] for row in first.itertuples())


def test_files_of_three_splits_are_taken_and_of_two_the_test_file_is_not(tmp_path):
    rows = log()
    for number, name in enumerate(("train", "valid", "test")):
        written(tmp_path, rows[number::3], f"{name}.csv")
    made = draft_interactions(str(tmp_path / "*.csv"), None, None, 10_000)
    assert {name: path.rpartition("/")[2] for name, path in made.features.items() if "path" in name} == {
        "path": "train.csv", "valid_path": "valid.csv", "test_path": "test.csv"
    }  # fmt: skip
    (tmp_path / "valid.csv").unlink()
    made = draft_interactions(str(tmp_path / "*.csv"), None, None, 10_000)
    assert made.features["path"].endswith("train.csv")
    assert "test_path" not in made.features
    assert any("test.csv is left aside" in remark for remark in made.remarks)


@pytest.mark.parametrize(
    ("change", "options", "match"),
    [
        (
            {"userId": ["", *range(1, ROWS)]},
            {},
            "column 'userId': 1 of the rows looked at hold no id. Leave these rows",
        ),
        ({"movieId": 7}, {}, "column 'movieId': one value alone, 7, so nothing can be ranked"),
        ({}, {"user": "usrId"}, "user 'usrId': no such column. Did you mean 'userId'"),
        ({}, {"user": "movieId", "item": "movieId"}, "'movieId' is given as user and as item"),
        ({}, {"target": "rating", "user": "userId"}, "target is a column to predict"),
        ({}, {"task": "binary"}, "task 'binary' is of a target"),
    ],
)
def test_what_is_refused(tmp_path, change, options, match):
    path = written(tmp_path, log(**change))
    with pytest.raises(DataError, match=re.escape(match)):
        init(path, out=tmp_path / "a.yaml", **options)
    assert not (tmp_path / "a.yaml").exists()


def test_lists_are_no_ids(tmp_path):
    rows = log()
    rows["movieId"] = [[item] for item in rows["movieId"]]
    rows.to_parquet(tmp_path / "log.parquet")
    with pytest.raises(DataError, match="'movieId': holds lists, and a row is to hold one id"):
        draft_interactions(str(tmp_path / "log.parquet"), None, "movieId", 10_000)


def test_a_log_that_cannot_be_split_is_refused_before_a_file_is_written(tmp_path):
    rows = pd.DataFrame({"userId": [1, 2], "movieId": [1, 2]})
    with pytest.raises(DataError, match="split 'train' is empty"):
        init(written(tmp_path, rows), out=tmp_path / "a.yaml")
    assert not (tmp_path / "a.yaml").exists()


def test_a_target_that_is_an_id_is_said_to_be_one(tmp_path):
    rows = log()[["userId", "movieId"]].rename(columns={"movieId": "items"})
    _, made = init(written(tmp_path, rows), "items", tmp_path / "a.yaml")
    assert any("The target's name says ids" in remark for remark in made.remarks)


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (lambda k: f"at {k} o'clock", "timestamp is named as a time, but no one way of writing times fits all of it"),
        (lambda k: "" if k % 5 == 0 else str(1_600_000_000 + k), "timestamp is null in 240 rows, so it is not taken"),
    ],
)
def test_times_that_cannot_be_taken_are_said(tmp_path, texts, told):
    """They were columns to learn from, or no times, and rows were split at random without a word of why."""
    rows = log()
    rows["timestamp"] = [texts(place) for place in range(ROWS)]
    made = draft_interactions(written(tmp_path, rows), None, None, 10_000)
    assert "time" not in made.features
    assert any(remark.startswith(told) for remark in made.remarks), made.remarks
    assert "timestamp" not in made.proposed_settings.get("contexts", {})


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_flags_are_ratings_of_0_and_1(tmp_path, ending):
    """Rows of clicked false were choices."""
    rows = log().drop(columns="rating")
    rows["clicked"] = np.random.default_rng(1).choice([True, False], ROWS)
    path = tmp_path / f"log.{ending}"
    rows.to_csv(path, index=False) if ending == "csv" else rows.to_parquet(path)
    out, made = init(str(path), out=tmp_path / "a.yaml")
    assert (made.features["rating"], made.features["threshold"]) == ("clicked", 1.0)
    features = Pipeline.from_config(str(out), {"artifacts": str(tmp_path / "artifacts")}).features()
    assert sum(features.rows.values()) == int(rows["clicked"].sum())


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_ratings_that_are_no_numbers_are_said_to_be_ignored(tmp_path, ending):
    """Each row, also one of dislike, is a choice then."""
    rows = log().drop(columns="rating")
    rows["clicked"] = np.random.default_rng(1).choice(["like", "dislike"], ROWS)
    path = tmp_path / f"log.{ending}"
    rows.to_csv(path, index=False) if ending == "csv" else rows.to_parquet(path)
    made = draft_interactions(str(path), None, None, 10_000)
    told = "clicked is named as a rating and holds no numbers, so each row is a choice, whatever it says. Write 1"
    assert any(remark.startswith(told) for remark in made.remarks), made.remarks
    assert "contexts" not in made.proposed_settings


def test_kinds_of_events_are_said_to_count_alike(tmp_path):
    rows = log().drop(columns="rating")
    rows["event_type"] = np.random.default_rng(1).choice(["view", "cart", "buy"], ROWS)
    made = draft_interactions(written(tmp_path, rows), None, None, 10_000)
    assert any(
        remark.startswith("event_type says what users did (buy, cart, view), and each row is a choice alike.")
        for remark in made.remarks
    ), made.remarks


@pytest.mark.parametrize(
    ("separator", "told"),
    [
        ("\t", "the first line looks like a row"),
        ("::", "parts its fields by '::'"),
    ],
)
def test_files_of_movielens_as_downloaded_are_told_where_to_go(tmp_path, separator, told):
    rows = [separator.join(map(str, row)) for row in log().itertuples(index=False)]
    (tmp_path / "u.data").write_text("\n".join(rows))
    with pytest.raises(DataError, match=told) as refused:
        init(str(tmp_path / "u.data"), out=tmp_path / "a.yaml")
    assert "recipe movielens" in str(refused.value)


def test_ratings_with_a_decimal_comma_are_said_to_be_ignored(tmp_path):
    rows = log()
    rows["rating"] = rows["rating"].astype(str) + ",5"
    made = draft_interactions(written(tmp_path, rows), None, None, 10_000)
    assert "rating" not in made.features
    told = "rating is named as a rating and its numbers are written in a way that the recipe does not read"
    assert any(remark.startswith(told) for remark in made.remarks), made.remarks


def test_a_column_named_as_the_recipes_own_is_not_proposed(tmp_path):
    """The lines in comments were refused as soon as they were taken in."""
    rows = log()
    rows["target"] = rows["movieId"] % 7
    made = draft_interactions(written(tmp_path, rows), None, None, 10_000)
    assert "continuous" not in made.proposed_settings
    assert made.left_out["target"] == "the recipe makes a column of this name; rename yours"
