"""The trivago recipe on logs of any size: the same bits whatever the blocks and chunks, and nothing left behind."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.errors import DataError
from gigabatch.features.reading.sources import cast, read_files
from gigabatch.features.recipes.base import SplitFractions
from gigabatch.features.recipes.trivago import recipe, stream
from gigabatch.features.recipes.trivago.log import LOG, chunk_bounds
from gigabatch.features.recipes.trivago.recipe import METADATA, TrivagoRecipe, TrivagoSettings, run_here, trivago_schema
from gigabatch.features.recipes.trivago.stream import split_of
from gigabatch.features.synthetic.trivago import write_synthetic_log
from tests.features.whole_log import build_pairs

SPLITS = ("train", "valid", "test", "score")
FRACTIONS = SplitFractions(0.6, 0.2, 0.2)


def recipe_of(folder):
    return TrivagoRecipe(TrivagoSettings(path=str(folder), split=FRACTIONS))


def raw_log(folder):
    parts = [read_files("pandas", str(folder / f"{name}.csv"), LOG, null_values=("",)) for name in ("train", "test")]
    return pd.concat(parts, ignore_index=True)


def streamed(folder, out, chunk_weight, block_bytes, run=run_here):
    """Splits by name as one frame each, and the number of parts of train."""
    found = recipe_of(folder).write_parts("pandas", out, chunk_weight, run, block_bytes)
    paths = {name: sorted((out / name).glob("part-*.parquet")) for name in SPLITS}
    frames = {
        name: pd.concat([pd.read_parquet(path) for path in parts], ignore_index=True) for name, parts in paths.items()
    }
    assert found.rows == {name: len(frame) for name, frame in frames.items()}
    return frames, len(paths["train"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A log with what real ones have: rows in any order, nulls, clickouts that cannot be used, rows of one moment."""
    path = tmp_path_factory.mktemp("log")
    write_synthetic_log(path, rows=3_000, seed=5)
    rng = np.random.default_rng(3)
    log = pd.read_csv(path / "train.csv", dtype="str", keep_default_na=False)
    for column in ("city", "platform", "device"):
        log.loc[rng.random(len(log)) < 0.02, column] = ""
    asked = np.flatnonzero(log["impressions"] != "")
    log.loc[asked[5:9], "reference"] = "999999999"
    log.loc[asked[9:12], ["impressions", "prices"]] = ""
    log.loc[rng.random(len(log)) < 0.01, "reference"] = "no item"
    # Sessions that meet in one second, so that a cut has to keep them together.
    log["timestamp"] = (log["timestamp"].astype("int64") // 600 * 600).astype("str")
    log.sample(frac=1, random_state=1).to_csv(path / "train.csv", index=False)
    return path


@pytest.fixture(scope="module")
def in_memory(folder):
    """The splits from the whole log as one frame, without blocks, chunks, files or history."""
    log = raw_log(folder)
    metadata = read_files("pandas", str(folder / "item_metadata.csv"), METADATA, null_values=("",))
    pairs, tables, flags = build_pairs(log, metadata)
    ends = pairs["session_id"].map(log.groupby("session_id")["timestamp"].max()).to_numpy()
    times = np.sort(tables.clickouts.loc[tables.clickouts["has_reference"], "timestamp"].to_numpy())
    until = times[int(len(times) * 0.6) - 1], times[int(len(times) * (0.6 + 0.2)) - 1]
    schema = trivago_schema(flags)
    from gigabatch.features.engines import pandas as engine_pandas

    masks = split_of(engine_pandas, pairs["target"], ends, *until)
    typed = cast(pairs[schema.names()], schema.dtypes(), "pairs")
    return {name: typed[mask].reset_index(drop=True) for name, mask in masks.items()}


def copy_log(folder, to):
    """The raw files, to be changed, and an empty folder `out`."""
    for name in ("train.csv", "test.csv", "item_metadata.csv"):
        (to / name).write_text((folder / name).read_text())
    (to / "out").mkdir()


def assert_same(found, expected):
    for name in SPLITS:
        pd.testing.assert_frame_equal(found[name], expected[name], check_exact=True)


@pytest.mark.parametrize(("chunk_weight", "block_bytes"), [(10**9, 10**9), (4_000, 10**9), (700, 40_000)])
def test_blocks_and_chunks_change_neither_a_bit_nor_the_order_of_rows(
    folder, in_memory, tmp_path, chunk_weight, block_bytes
):
    found, parts = streamed(folder, tmp_path, chunk_weight, block_bytes)
    assert_same(found, in_memory)
    assert (parts == 1) == (chunk_weight == 10**9)
    assert parts > 5 or chunk_weight > 700
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(SPLITS)
    assert all(path.name.startswith("part-") for name in SPLITS for path in (tmp_path / name).iterdir())


def test_tasks_may_run_at_once_and_twice(folder, in_memory, tmp_path):
    """A lost worker's tasks run again, when what they write may be there already."""

    def twice(function, tasks):
        with ThreadPoolExecutor(3) as pool:
            first = list(pool.map(function, tasks))
            if function.__name__ == "code_block":
                assert list(pool.map(function, reversed(tasks))) == first[::-1]
                return first
            return list(pool.map(function, tasks))

    found, _ = streamed(folder, tmp_path, 2_500, 100_000, twice)
    assert_same(found, in_memory)


def test_several_workers_have_equal_shares_of_a_log_that_would_be_one_chunk(folder, in_memory, tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "LEAST_SHARE", 10)
    monkeypatch.setattr(recipe, "LEAST_BLOCK_BYTES", 10)

    def beside(function, tasks):
        counts.append((function.__name__, len(tasks)))
        return run_here(function, tasks)

    counts = []
    found, _ = streamed(folder, tmp_path, 10**9, 10**9, beside)
    assert_same(found, in_memory)
    assert dict(counts)["survey_block"] >= stream.SHARES
    assert dict(counts)["write_chunk"] >= stream.SHARES


def test_a_split_without_rows_has_one_part_with_its_columns(folder, tmp_path):
    """Every reference is known, so nothing is to be scored."""
    copy_log(folder, tmp_path)
    truth = pd.read_csv(folder / "ground_truth.csv", dtype="str", keep_default_na=False)
    test = pd.read_csv(folder / "test.csv", dtype="str", keep_default_na=False)
    for frame in (truth, test):
        frame.index = frame["session_id"] + " " + frame["step"]
    test.update(truth)
    log = pd.read_csv(tmp_path / "train.csv", dtype="str", keep_default_na=False)
    log = log[(log["action_type"] != "clickout item") | (log["reference"] != "")]
    log.to_csv(tmp_path / "train.csv", index=False)
    test.to_csv(tmp_path / "test.csv", index=False)
    frames, _ = streamed(tmp_path, tmp_path / "out", 20_000, 10**9)
    assert len(frames["score"]) == 0
    assert dict(frames["score"].dtypes) == dict(frames["test"].dtypes)
    assert [path.name for path in (tmp_path / "out" / "score").iterdir()] == ["part-00000.parquet"]


def test_a_task_holds_rows_and_pairs_of_about_the_weight_asked_for(folder, tmp_path):
    """What a chunk holds, and so the memory that it takes, does not grow with the log."""
    sizes = []

    def watched(function, tasks):
        results = run_here(function, tasks)
        if function.__name__ == "gather_chunk":
            sizes.extend(sum(len(pd.read_parquet(task.path(name))) for name in ("rows", "pairs")) for task in tasks)
        return results

    streamed(folder, tmp_path, 1_000, 100_000, watched)
    heaviest = (
        raw_log(folder)
        .groupby("timestamp")["impressions"]
        .agg(lambda lists: len(lists) + sum(text.count("|") + 1 for text in lists.dropna()))
    )
    assert max(sizes) < 1_000 + heaviest.max()
    assert len(sizes) > 5


def test_chunks_begin_where_the_weight_is_full_and_never_within_a_timestamp():
    times = pd.DataFrame({"timestamp": [7, 1, 3, 3, 9, 5], "weight": [1, 4, 3, 3, 2, 5]})
    # By time: 1 (4), 3 (6), 5 (5), 7 (1), 9 (2).
    assert chunk_bounds(times, 10).tolist() == [5]
    assert chunk_bounds(times, 5).tolist() == [5, 7]
    assert chunk_bounds(times, 4).tolist() == [3, 5, 7, 9]
    assert chunk_bounds(times, 100).tolist() == []
    assert chunk_bounds(times, 1).tolist() == [3, 5, 7, 9]


def test_item_numbers_that_do_not_fit_are_refused(folder, tmp_path):
    copy_log(folder, tmp_path)
    log = pd.read_csv(tmp_path / "train.csv", dtype="str", keep_default_na=False)
    log.loc[log.index[log["action_type"] == "search for item"][0], "reference"] = str(1 << 31)
    log.to_csv(tmp_path / "train.csv", index=False)
    with pytest.raises(DataError, match=r"reference hold an item number outside \[0, 2\^31\), for example 2147483648"):
        recipe_of(tmp_path).write_parts("pandas", tmp_path / "out", 10**6, run_here)
    assert list((tmp_path / "out").iterdir()) == []


def test_an_error_in_any_block_is_said_as_it_is_for_a_whole_log(folder, tmp_path):
    copy_log(folder, tmp_path)
    with open(tmp_path / "test.csv", "a") as file:
        file.write("u,s,-4,1,clickout item,1,US,x,mobile,,1,1\n")
    with pytest.raises(DataError, match="negative timestamp or step"):
        recipe_of(tmp_path).write_parts("pandas", tmp_path / "out", 10**6, run_here, 20_000)
