"""Series among the rows of a table, and the steps that `init` proposes for them, beside pandas."""

import re

import numpy as np
import pandas as pd
import pytest

from gigabatch import init
from gigabatch.pipeline.config.config import load_config
from gigabatch.pipeline.init.series import series
from gigabatch.pipeline.stages.stages import Pipeline

DAY = 86_400_000_000
SIX_DAYS = pd.offsets.CustomBusinessDay(weekmask="Mon Tue Wed Thu Fri Sat")


def walk(rows: int, seed: int = 0) -> np.ndarray:
    return np.cumsum(np.random.default_rng(seed).normal(size=rows)).round(2)


def days(rows: int) -> np.ndarray:
    return np.arange(rows) * DAY


@pytest.mark.parametrize("seed", [0, 1])
def test_a_series_is_found_whatever_the_order_of_its_rows(seed):
    shops, places = np.repeat(["a", "b", "c"], 200), np.tile(np.repeat(["x", "y"], 100), 3)
    times = np.tile(days(100), 6)
    sold = np.concatenate([walk(100, place) for place in range(6)])
    order = np.random.default_rng(seed).permutation(600)
    categories = {"shop": shops[order], "sign": np.full(600, "s"), "place": places[order]}
    found = series(times[order], sold[order], categories)
    assert (set(found.by), found.step) == ({"shop", "place"}, "1d")


@pytest.mark.parametrize(
    ("times", "values"),
    [
        (days(300), np.random.default_rng(0).normal(size=300)),  # no value tells of the next
        (days(300), np.full(300, 5.0)),
        (days(300), np.full(300, np.nan)),
        (np.sort(np.random.default_rng(1).integers(0, 300 * DAY, 300)), walk(300)),  # moments of purchases
        (np.repeat(days(150), 2), walk(300)),  # two rows a day that nothing tells apart
        (days(99), walk(99)),
    ],
)
def test_other_rows_are_none(times, values):
    assert series(times, values, {}) is None


def test_keys_of_few_rows_and_nulls_of_keys_and_labels_are_no_obstacle_and_no_series():
    rows = 300
    keys = np.arange(rows // 10).repeat(10)  # ten days each
    assert series(np.tile(days(10), rows // 10), walk(rows), {"key": keys}) is None
    shops = np.array(["a", None], dtype=object).repeat(rows // 2)
    values = np.concatenate([walk(rows // 2), walk(rows // 2, 1)])
    values[::7] = np.nan
    assert series(np.tile(days(rows // 2), 2), values, {"shop": shops}).by == ("shop",)


@pytest.mark.parametrize(
    ("freq", "text", "names"),
    [
        ("h", "1h", ["y_1h_before", "y_1d_before", "y_mean_7d"]),
        ("D", "1d", ["y_1d_before", "y_7d_before", "y_mean_28d"]),
        ("90s", "90s", ["y_90s_before", "y_mean_7d"]),
        ("7D", "7d", ["y_7d_before", "y_mean_91d"]),
        ("MS", "month", ["y_1_rows_before", "y_12_rows_before", "y_mean_365d"]),
        ("QS", "quarter", ["y_1_rows_before", "y_4_rows_before", "y_mean_365d"]),
        ("YS", "year", ["y_1_rows_before", "y_mean_1830d"]),
        ("28D", "28d", ["y_28d_before", "y_mean_91d"]),  # which is no month
        ("B", "business day", ["y_1_business_days_before", "y_7d_before", "y_mean_28d"]),
        ("C", "business day", ["y_1_business_days_before", "y_7d_before", "y_mean_28d"]),  # closed on Sundays
    ],
)
def test_the_lines_in_comments_are_steps_that_look_back_as_pandas_does(tmp_path, freq, text, names):
    """Of two shops, the second of which misses a row; with a name that is taken."""
    times = pd.date_range("2021-01-01", periods=200, freq=SIX_DAYS if freq == "C" else freq)
    frames = [
        pd.DataFrame(
            {"at": times, "shop": shop, "y": walk(200, seed), "x": walk(200, seed + 5), names[0]: walk(200, 9)}
        )
        for seed, shop in enumerate("ab")
    ]
    rows = pd.concat(frames, ignore_index=True).drop(index=250).sort_values("at", kind="stable")
    rows.to_csv(tmp_path / "rows.csv", index=False)
    path, made = init(str(tmp_path / "rows.csv"), "y", tmp_path / "rows.yaml")
    assert any(f"of each shop, a row every {text}," in remark for remark in made.remarks)
    content = path.read_text()
    assert "lag" not in load_config(path).to_yaml()
    path.write_text(re.sub("(?m)^  # ", "  ", content))
    store = [f"artifacts={tmp_path / 'artifacts'}", f"runs={tmp_path / 'runs'}", "engine=pandas"]
    features = Pipeline.from_config(path, *store).features()
    own = [f"{names[0]}_", *names[1:]]
    assert load_config(path).model.settings.numeric == {**dict.fromkeys(own, "plain"), "*": "bins"}
    found = pd.concat([features.frame(split) for split in ("train", "valid", "test")])
    assert set(own) <= set(found.columns)
    assert found["shop"].tolist() == rows["shop"].tolist()
    for name, column in zip(names, own, strict=True):
        span = name.removesuffix("_before").rpartition("_")[2].replace("d", "D")
        for shop in "ab":
            part = rows[rows["shop"] == shop].set_index("at")["y"]
            if "mean" in name:
                expected = part.rolling(pd.Timedelta(span), closed="left").mean()
            elif name.split("_")[2] in ("rows", "business"):
                expected = part.shift(int(name.split("_")[1]))
            else:
                expected = part.shift(freq=pd.Timedelta(span)).reindex(part.index)
            mine = found.loc[(found["shop"] == shop).to_numpy(), column].astype(float)
            np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_rows_that_come_twice_at_a_time_are_in_their_order(tmp_path, zone):
    """A row that was written twice, or the hour that comes twice where clocks change: the lag was refused."""
    at = pd.date_range("2021-06-01", periods=5000, freq="h", tz=zone).tz_localize(None)
    rows = pd.DataFrame({"at": at, "x": walk(5000, 3), "y": walk(5000)})
    if zone is None:
        rows = pd.concat([rows, rows.iloc[[2000]].assign(y=77.0)], ignore_index=True)
    found = trained_features(tmp_path, rows)
    twice = rows["at"] == rows["at"][rows["at"].duplicated()].iloc[0]
    last = rows.loc[twice, "y"].iloc[-1]
    after = found.loc[(found["at"] == rows.loc[twice, "at"].iloc[0].value // 1000 + 3_600_000_000).to_numpy()]
    assert after["y_1h_before"].tolist() == [pytest.approx(last)]


def test_spans_longer_than_the_series_are_not_proposed(tmp_path):
    """They were null in every row."""
    times = pd.date_range("2021-01-01", periods=5000, freq="100ms")
    found = trained_features(tmp_path, pd.DataFrame({"at": times, "x": walk(5000, 3), "y": walk(5000)}))
    assert [name for name in found if name.startswith("y_")] == ["y_100ms_before", "y_mean_7d"]


@pytest.mark.parametrize("missing", ["rows", "labels", None])
def test_rows_before_are_not_called_months_where_some_months_are_missing(tmp_path, missing):
    """The twelfth row before is of another month then."""
    rows = pd.DataFrame({"at": pd.date_range("1990-01-01", periods=200, freq="MS"), "x": walk(200, 3), "y": walk(200)})
    left = rows.assign(y=rows["y"].where(rows.index != 100)) if missing == "labels" else rows
    found = trained_features(tmp_path, rows.drop(index=100) if missing == "rows" else left)
    unit = "rows" if missing else "months"
    names = [f"y_1_{unit}_before", f"y_12_{unit}_before", "y_mean_365d"]
    assert [name for name in found if name.startswith("y_")] == names
    assert found[names[1]].iloc[100] == pytest.approx(rows["y"][88])  # of 13 months before, where one is missing


def trained_features(tmp_path, rows: pd.DataFrame) -> pd.DataFrame:
    """All splits of the features that `init` proposes, its comments made lines."""
    rows.to_csv(tmp_path / "rows.csv", index=False)
    path, _ = init(str(tmp_path / "rows.csv"), "y", tmp_path / "rows.yaml")
    path.write_text(re.sub("(?m)^  # ", "  ", path.read_text()))
    store = [f"artifacts={tmp_path / 'artifacts'}", f"runs={tmp_path / 'runs'}", "engine=pandas"]
    features = Pipeline.from_config(path, *store).features()
    return pd.concat([features.frame(split) for split in ("train", "valid", "test")])


@pytest.mark.parametrize("as_seconds", [True, False])
def test_the_time_of_what_rises_from_day_to_day_is_no_leak(tmp_path, as_seconds):
    """It explains all of the label's variance; left out, the split was random, and neighbours told each row."""
    times = pd.date_range("2015-01-01", periods=2000, freq="D")
    level = 300 + np.arange(2000) / 50 + np.random.default_rng(0).normal(0, 0.1, 2000)
    rows = pd.DataFrame({"when": times.as_unit("s").asi8 if as_seconds else times, "level": level, "x": walk(2000)})
    rows.to_csv(tmp_path / "rows.csv", index=False)
    _, made = init(str(tmp_path / "rows.csv"), "level", tmp_path / "rows.yaml")
    assert (made.leaks, made.features["time"]) == ([], "when")
    assert made.features["continuous"] == ["x"]
