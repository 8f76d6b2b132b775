"""The pair table drawn by torch, which a GPU draws, against the one that NumPy draws."""

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from benchmarks import pairs

ROWS = 120_000


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    pairs.write_pairs(folder / "host.parquet", ROWS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs, "GROUP_ROWS", 50_000)  # several blocks, the last one not full
        pairs.write_pairs_from_device(folder / "device.parquet", ROWS, "cpu")
        pairs.write_pairs_from_device(folder / "again.parquet", ROWS, "cpu")
    return {name: pq.read_table(folder / f"{name}.parquet") for name in ("host", "device", "again")}


def test_columns_and_types_are_those_of_the_host(tables):
    host, device = (tables[name].schema for name in ("host", "device"))
    assert device.names == host.names
    texts = set(pairs.TEXT)
    assert {field.name: field.type for field in device if field.name not in texts} == {
        field.name: field.type for field in host if field.name not in texts
    }
    assert {str(device.field(name).type).removeprefix("large_") for name in texts} == {"string"}


def test_every_row_is_drawn_once_and_again_by_seed(tables):
    assert len(tables["device"]) == ROWS
    assert tables["device"]["row_id"].to_pylist() == [row // 25 for row in range(ROWS)]
    assert tables["device"].equals(tables["again"])
    first, second = (tables["device"]["cont_0"].slice(start, 50_000) for start in (0, 50_000))
    assert first != second


def test_shares_of_nulls(tables):
    shares = {name: tables["device"][name].null_count / ROWS for name in tables["device"].column_names}
    assert shares.pop("current_filters") == pytest.approx(0.55, abs=0.01)
    assert [shares.pop(name) for name in pairs.CONTINUOUS] == pytest.approx([0.05] * 20, abs=0.005)
    assert not any(shares.values())


@pytest.mark.parametrize("name", ["user_id", "item_id", "city", "platform", "device", "current_filters"])
def test_values_are_those_of_the_host_and_follow_zipf(tables, name):
    """Of a value with share p the count is binomial: within five deviations for the most frequent ones, whose shares
    are written down here anew, and for how many distinct values there are."""
    drawn = tables["device"][name].drop_null().to_pandas()
    size = pairs.CARDINALITY[name]
    texts = pairs.TEXT.get(name)
    possible = {texts(code) for code in range(size)} if texts else set(range(5, 5 + 11 * size, 11))
    assert set(drawn) <= possible
    weights = np.arange(1, size + 1) ** -0.7
    shares = weights / weights.sum()
    counts = drawn.value_counts().to_numpy()
    top = shares[: min(size, 5)] * len(drawn)
    # Neighbours in rank may change places, which moves a sorted count by less than its deviation.
    assert np.abs(counts[: len(top)] - top).max() < 5 * np.sqrt(top.max()), (counts[:5], top)
    distinct = (1 - (1 - shares) ** len(drawn)).sum()
    assert abs(len(counts) - distinct) < 5 * np.sqrt(distinct) + 1
    assert len(counts) == pytest.approx(tables["host"][name].to_pandas().nunique(), rel=0.02)


def test_the_target_depends_on_the_columns_as_on_the_host(tables):
    """Means of the target where a column is high and low, by table: what a model can learn is alike."""

    def means(table):
        frame = table.select(["target", "cont_0", "cont_1", "cont_2", "is_0"]).to_pandas()
        found = [frame["target"].mean()]
        for name in ("cont_0", "cont_1", "cont_2"):
            high = pd.cut(frame[name], [0, 0.5, 1, 2, np.inf])
            found += frame.groupby([high, frame["is_0"]], observed=True)["target"].mean().tolist()
        return found

    host, device = means(tables["host"]), means(tables["device"])
    assert len(host) == 25
    assert device == pytest.approx(host, abs=0.02)  # effects of users and items are drawn anew, and shift all alike
    assert device[1] < device[7] - 0.02  # the higher cont_0, the likelier
    users = (
        tables["device"].select(["user_id", "target"]).to_pandas().groupby("user_id")["target"].agg(["mean", "size"])
    )
    often = users[users["size"] >= users["size"].quantile(0.999)]
    noise = (often["mean"].mean() * (1 - often["mean"].mean()) / often["size"]).mean() ** 0.5
    assert often["mean"].std() > 1.05 * noise  # users differ by more than chance


def test_another_exponent_would_be_seen(monkeypatch, tmp_path):
    """The check above can fail: another law gives other counts of the most frequent values."""
    monkeypatch.setattr(pairs, "EXPONENT", pairs.EXPONENT - 0.2)
    pairs.write_pairs_from_device(tmp_path / "other.parquet", ROWS, "cpu")
    with pytest.raises(AssertionError):
        test_values_are_those_of_the_host_and_follow_zipf({"device": pq.read_table(tmp_path / "other.parquet")}, "city")
