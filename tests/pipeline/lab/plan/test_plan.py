"""`gigabatch plan`: samples, extrapolation, verdicts; and a plan held against the run that it is of."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gigabatch.pipeline.lab.plan.plan as plan_module
from gigabatch.features.errors import DataError
from gigabatch.features.recipes import recipe_class
from gigabatch.features.synthetic.trivago import write_synthetic_log
from gigabatch.models.inputs import EntityColumns, ListInputs, ModelInputs
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.config.config import parse_config
from gigabatch.pipeline.display import about_bytes, about_seconds
from gigabatch.pipeline.lab.plan.forecast import Forecast, Probes, distinct_values, predict
from gigabatch.pipeline.lab.plan.plan import _sample_text, make_plan
from gigabatch.pipeline.lab.plan.sample import PlanError, Size, measure, sample_files
from gigabatch.pipeline.machine import Machine, available_memory
from gigabatch.pipeline.training import beside
from tests.pipeline.lab.plan.forked_probes import forked_probes

GIB = 1 << 30


def rows_of(number: int, seed: int = 3) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "row": np.arange(number),
            "shop": random.choice(["north", "so,uth", 'ea"st', "we\nst"], number),
            "person": random.integers(0, max(number // 4, 1), number).astype(str),
            "price": random.normal(size=number).round(4),
            "label": random.integers(0, 2, number),
        }
    )


def config_of(folder: Path, path: Path, **changes):
    raw = {
        "name": "planned",
        "recipe": "table",
        "device": "cpu",
        "engine": "pandas",
        "artifacts": str(folder / "artifacts"),
        "runs": str(folder / "runs"),
        "features": {
            "path": str(path),
            "categorical": ["shop", "person"],
            "continuous": ["price"],
            "targets": {"label": {"task": "binary"}},
            "keys": ["row"],
        },
        "model": {"layers": [16]},
        "train": {"epochs": 2, "batch_size": 256},
        "evaluate": {"importance": False},
    }
    return parse_config(raw | changes)


# --- extrapolation


@given(
    st.floats(0, 1e9), st.floats(0, 1e9), st.floats(0.001, 0.4), st.floats(0.5, 0.9), st.sampled_from([(0, 1), (1, 0)])
)
def test_a_line_with_parts_that_are_not_negative_is_found_again(fixed, growing, small, large, order):
    points = [(small, fixed + growing * small), (large, fixed + growing * large)]
    whole = predict([points[place] for place in order])
    assert whole == pytest.approx(fixed + growing, rel=1e-6, abs=1e-3)


def test_neither_the_fixed_nor_the_growing_part_is_negative():
    assert predict([(0.1, 9.0), (0.2, 8.0)]) == 9.0  # noise: no part that falls with the size
    assert predict([(0.1, 1.0), (0.2, 4.0)]) == 20.0  # through the origin and the larger sample
    assert predict([(1.0, 7.0)]) == 7.0


def test_distinct_values_of_drawn_rows():
    """Zipf-like draws: what the law says of 80,000 rows is near what they hold."""
    random = np.random.default_rng(1)
    weights = 1 / np.arange(1, 300_001)
    drawn = np.searchsorted(np.cumsum(weights) / weights.sum(), random.random(80_000))
    points = [(rows, len(np.unique(drawn[:rows]))) for rows in (2_500, 10_000)]
    assert distinct_values(points, 80_000) == pytest.approx(len(np.unique(drawn)), rel=0.25)


def test_distinct_values_neither_fall_nor_outgrow_the_rows():
    assert distinct_values([(100, 5), (400, 5)], 10_000) == 5
    assert distinct_values([(100, 0), (400, 0)], 10_000) == 0
    assert distinct_values([(100, 10), (400, 400)], 10_000) == 10_000  # rarer values pass a threshold one by one
    assert distinct_values([(400, 7)], 400) == 7


# --- samples


@pytest.mark.parametrize("ending", [".csv", ".data.gz", ".csv.zip", ".csv.zst", ".parquet"])
def test_a_sample_holds_whole_rows_of_the_file(tmp_path, ending):
    rows = rows_of(20_000)
    path = tmp_path / f"rows{ending}"
    if ending == ".parquet":
        rows.to_parquet(path, row_group_size=3000)
    elif ending.endswith(".zst"):
        with pa.CompressedOutputStream(str(path), "zstd") as file:
            file.write(rows.to_csv(index=False).encode())
    else:
        rows.to_csv(path, index=False)
    config = config_of(tmp_path, path)
    settings, share = sample_files("table", config.features, 0.1, tmp_path / "sample")
    (taken,) = Path(settings.path).iterdir()
    unpacked = pa.input_stream(taken, compression="zstd") if ending.endswith(".zst") else taken
    sample = pd.read_parquet(taken) if ending == ".parquet" else pd.read_csv(unpacked, dtype={"person": str})
    assert taken.name.endswith(path.name)
    assert share == pytest.approx(len(sample) / len(rows), rel=0.03)
    assert 0.08 < share < 0.12
    assert sample["row"].is_unique
    assert sample["row"].is_monotonic_increasing
    expected = rows.set_index("row").loc[sample["row"]].reset_index()
    pd.testing.assert_frame_equal(sample, expected, check_dtype=False)
    # spread over the file: every tenth of it is seen
    assert set(np.unique(sample["row"] // 2000)) == set(range(10))


def test_a_file_without_header_keeps_no_row_as_one(tmp_path):
    rows = rows_of(5000)
    rows.to_csv(tmp_path / "rows.csv", index=False, header=False)
    config = config_of(tmp_path, tmp_path / "rows.csv")
    features = type(config.features)(**(vars(config.features) | {"column_names": tuple(rows)}))
    assert measure("table", features).rows == 5000
    settings, _ = sample_files("table", features, 0.2, tmp_path / "sample")
    sample = pd.read_csv(next(Path(settings.path).iterdir()), header=None)
    assert sample[0].is_unique
    assert sample[0].isin(rows["row"]).all()


def test_rows_are_counted_from_footers_or_estimated_from_lines(tmp_path):
    rows = rows_of(50_000).assign(shop="x")
    rows.to_parquet(tmp_path / "a.parquet")
    rows.to_csv(tmp_path / "a.csv", index=False)
    exact = measure("table", config_of(tmp_path, tmp_path / "a.parquet").features)
    estimate = measure("table", config_of(tmp_path, tmp_path / "a.csv").features)
    assert (exact.rows, exact.exact_rows, estimate.exact_rows) == (50_000, True, False)
    assert estimate.rows == pytest.approx(50_000, rel=0.1)
    assert exact.num_bytes == (tmp_path / "a.parquet").stat().st_size


def test_a_trivago_log_is_sampled_in_both_of_its_files_and_its_metadata_stays_whole(tmp_path):
    write_synthetic_log(tmp_path / "log", 6000, seed=5)
    raw = {"name": "t", "recipe": "trivago", "features": {"path": str(tmp_path / "log"), "item_metadata": "meta.csv"}}
    (tmp_path / "log" / "item_metadata.csv").rename(tmp_path / "log" / "meta.csv")
    settings, share = sample_files("trivago", parse_config(raw).features, 0.25, tmp_path / "sample")
    paths = [Path(path) for path in recipe_class("trivago")(settings).inputs()]
    names = ["train", "test", "item_metadata"]
    assert [path.parent.name for path in paths] == names
    taken = [pd.read_csv(path) for path in paths[:2]]
    whole = [pd.read_csv(tmp_path / "log" / f"{name}.csv") for name in names[:2]]
    assert share == pytest.approx(sum(map(len, taken)) / 6000, rel=0.1)
    for some, every in zip(taken, whole, strict=True):
        assert 0.15 * len(every) < len(some) < 0.35 * len(every)
        assert len(some.merge(every.drop_duplicates(), how="inner")) == len(some)
    assert paths[2].read_bytes() == (tmp_path / "log" / "meta.csv").read_bytes()


# --- refused before anything runs


def test_hostile_inputs(tmp_path):
    with pytest.raises(
        PlanError, match=r"recipe 'tiny' has no sampler.*flights, interactions, movielens, table, trivago"
    ):
        make_plan(parse_config({"name": "x", "recipe": "tiny", "features": {"path": str(tmp_path)}}))
    (tmp_path / "empty.csv").write_text("row,shop,person,price,label\n")
    with pytest.raises(PlanError, match="hold no rows"):
        make_plan(config_of(tmp_path, tmp_path / "empty.csv"))
    rows_of(0).to_parquet(tmp_path / "empty.parquet")
    with pytest.raises(PlanError, match="hold no rows"):
        make_plan(config_of(tmp_path, tmp_path / "empty.parquet"))
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(PlanError, match=r"cut.parquet cannot be read as Parquet"):
        make_plan(config_of(tmp_path, tmp_path / "cut.parquet"))
    (tmp_path / "cut.csv.zip").write_bytes(b"PK and then nothing")
    with pytest.raises(PlanError, match=r"cut.csv.zip cannot be read"):
        make_plan(config_of(tmp_path, tmp_path / "cut.csv.zip"))
    with pytest.raises(DataError, match="no such file"):
        make_plan(config_of(tmp_path, tmp_path / "nothing.csv"))
    assert not (tmp_path / "artifacts").exists()


def test_what_the_stages_say_of_a_sample_is_passed_on(tmp_path):
    rows_of(500).assign(label=7).to_csv(tmp_path / "rows.csv", index=False)
    with forked_probes(), pytest.raises(PlanError, match=r"the stages fail on a sample of the inputs: .*'label'"):
        make_plan(config_of(tmp_path, tmp_path / "rows.csv"))
    assert list((tmp_path / "artifacts").iterdir()) == []


# --- whole plans


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """A plan of 16,000 rows from samples of them, and what it left in the artifacts' folder."""
    folder = tmp_path_factory.mktemp("planned")
    rows_of(16_000).to_csv(folder / "rows.csv", index=False)
    config = config_of(folder, folder / "rows.csv", evaluate={"importance": True, "importance_rows": 1000})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_module, "FEW_ROWS", 10_000)
        plan = make_plan(config)
    return plan, sorted(path.name for path in (folder / "artifacts").iterdir())


def test_rows_and_vocabularies_are_near_those_of_the_whole(planned):
    """Memory and time depend on the machine: benchmarks/plan.py holds them against whole runs."""
    plan, left = planned
    assert left == []
    assert not plan.exact
    assert plan.rows_by_split == pytest.approx({"train": 12_800, "valid": 1600, "test": 1600}, rel=0.1)
    # four shops, and people by Heaps' law: 16,000 rows over 4,000 people
    assert plan.id_sizes["shop"] == 3 + 4
    assert 2000 < plan.id_sizes["person"] < 12_000
    told = json.loads(json.dumps(plan.to_dict()))
    assert [stage["stage"] for stage in told["stages"]] == ["features", "encode", "train", "evaluate"]
    assert all(stage["seconds"] > 0 and stage["host_bytes"] > 50 << 20 for stage in told["stages"])
    assert told["seconds"] > sum(stage["seconds"] for stage in told["stages"])
    assert (told["fits"], told["residency"], told["rows_per_part"]) == (True, "host", 1_000_000)


def test_of_few_rows_the_whole_is_run_and_that_is_said(tmp_path, capsys):
    rows_of(1500).to_csv(tmp_path / "rows.csv", index=False)
    config = config_of(tmp_path, tmp_path / "rows.csv")
    (tmp_path / "c.yaml").write_text(json.dumps(config.to_dict()))
    with forked_probes():
        assert main(["plan", "--config", str(tmp_path / "c.yaml")]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "so few that the whole run was made and measured" in out
    assert "verdict it fits" in out


def test_epochs_without_end_are_not_trained_to_be_counted(tmp_path, capsys):
    """R14: so few rows that the whole run was made, and it did not end."""
    rows_of(1500).to_csv(tmp_path / "rows.csv", index=False)
    config = config_of(tmp_path, tmp_path / "rows.csv", train={"epochs": 10**9, "batch_size": 256})
    (tmp_path / "c.yaml").write_text(json.dumps(config.to_dict()))
    with forked_probes():
        assert main(["plan", "--json", "--config", str(tmp_path / "c.yaml")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["exact"] is False
    assert told["sample"].endswith("was made and measured, with 3 epochs of training")
    train = told["stages"][2]["seconds"]
    assert train > 1e9 * 4 * 1e-5  # four steps an epoch, of no less than ten microseconds
    assert told["seconds"] == pytest.approx(train, rel=1e-3)


def test_a_model_without_steps_that_was_fitted_to_all_rows_is_not_said_to_lack_epochs():
    config = parse_config(
        {"name": "k", "recipe": "table", "model": {"kind": "popularity"},
         "features": {"path": "x", "categorical": ["id"], "targets": {"y": {"task": "binary"}}}}
    )  # fmt: skip
    entities = {"user": EntityColumns(0, (0,), ()), "item": EntityColumns(0, (0,), ())}
    found = costs(1.0, 1500, 1500) | {"epochs": 3, "inputs": ModelInputs((10,), 3, **entities).to_dict()}
    forecast = Forecast(config, [found])
    assert forecast.settings.epochs > 3
    text = _sample_text(Size(1500, 90_000, exact_rows=True), forecast)
    assert text.endswith("so few that the whole run was made and measured")


# --- from known costs: what a whole run must be said to take


FIXED, A_ROW, A_PART_ROW = 300 << 20, 200, 2000


def costs(share: float, rows: int, part_rows: int, words: int = 10) -> dict:
    """What a sample run would report whose memory is FIXED + A_ROW a row + A_PART_ROW a row of a part."""
    taken = round(rows * share)
    split = {"train": round(taken * 0.8), "valid": round(taken * 0.1), "test": round(taken * 0.1)}
    peak = FIXED + A_ROW * taken + A_PART_ROW * part_rows
    table = taken * words * 4
    seconds = {"features: read": 1 + 8 * share, "features written": 0.5, "encode": 2 + 4 * share, "train": 1.0}
    later = ("train", "evaluate")
    phases = [
        {
            "name": name,
            "seconds": seconds.get(name, 3 + 6 * share),
            "cpu_seconds": 2 * seconds.get(name, 3 + 6 * share),
            "peak_bytes": FIXED + round(table * {"train": 0.9, "evaluate": 1}[name]) if name in later else peak,
            "held_bytes": FIXED,
            "gpu_bytes": 0,
            "disk_bytes": round(1000 * taken),
        }
        for name in (*seconds, "evaluate")
    ]
    times = [[1, 30], [taken // 10, taken // 20]]  # of values that occur once, and thirty times
    return {
        "share": share,
        "epochs": 1,
        "rows": split,
        "num_words": words,
        "inputs": ModelInputs((10,), 3).to_dict(),
        "known": {},
        "counts": {"id": times},
        "counted": {"id": split["train"]},
        "lists": [],
        "startup_seconds": 2.0,
        "device": "cpu",
        "phases": phases,
    }


STEP = {
    "threads": 1,
    "step_seconds": 0.01,
    "first_seconds": 0.5,
    "end_seconds": 0.25,
    "valid_row_seconds": 1e-6,
    "cpu_per_second": 2.0,
    "more_host_bytes": 100 << 20,
    "gpu_bytes": 0,
    "table_bytes": 1 << 20,
    "checkpoint_bytes": 5 << 20,
}
ROWS = 1_000_000


def known(part: int = 400_000, **changes) -> Forecast:
    config = parse_config(
        {"name": "k", "recipe": "table", "rows_per_part": part, "train": {"epochs": 3, "batch_size": 1000},
         "evaluate": {"importance": False}, "features": {"path": "x", "categorical": ["id"],
         "targets": {"y": {"task": "binary"}}}} | changes
    )  # fmt: skip
    forecast = Forecast(config, [costs(share, ROWS, round(part * share)) for share in (0.025, 0.1)])
    forecast.steps = dict(STEP)
    return forecast


def test_ids_of_a_start_are_there_and_new_ones_are_foretold():
    plain = known()
    grown = Forecast(plain.config, [result | {"known": {"id": 5000}} for result in plain.found])
    assert grown.id_sizes["id"] == plain.id_sizes["id"] + 5000


@pytest.mark.parametrize(("cores", "rounds", "begun"), [(1, 4, 0), (2, 2, 2)])
def test_members_side_by_side_take_the_time_of_their_rounds(monkeypatch, cores, rounds, begun):
    monkeypatch.setattr(beside, "available_cores", lambda: cores)
    monkeypatch.setattr(beside, "available_memory", lambda: 64 * GIB)
    forecast = known(train={"epochs": 3, "batch_size": 1000, "ensemble": 4})
    of_one, begins = 0.5 + 3 * (800 * 0.01 + 0.25 + 0.1), 3.0
    assert forecast.seconds("train") == pytest.approx(rounds * of_one + (begins if begun else 0))
    assert forecast.seconds("train", "cpu_seconds") == pytest.approx(2 * 4 * of_one + begun * begins)


def test_known_costs_are_found_again():
    forecast = known()
    assert forecast.rows == {"train": 800_000, "valid": 100_000, "test": 100_000}
    assert forecast.host_bytes("encode") == pytest.approx(FIXED + A_ROW * ROWS + A_PART_ROW * 400_000, rel=1e-6)
    assert forecast.seconds("features") == pytest.approx(9.5)
    assert forecast.seconds("encode", "cpu_seconds") == pytest.approx(12)
    # three epochs of 800 steps, each with its end and 100,000 validation rows
    assert forecast.seconds("train") == pytest.approx(0.5 + 3 * (800 * 0.01 + 0.25 + 0.1))
    assert forecast.mapped_bytes("train") == 900_000 * 40
    assert forecast.host_bytes("train") == pytest.approx(FIXED + (100 << 20) + 900_000 * 40, rel=1e-6)
    assert forecast.host_bytes("evaluate") == pytest.approx(FIXED + ROWS * 40 + forecast.parameter_bytes, rel=1e-6)
    assert forecast.disk_bytes("encode") == pytest.approx(1000 * ROWS)
    # values grow with the rows here, so Heaps' exponent is 1
    assert forecast.id_sizes["id"] == pytest.approx(150_000, rel=0.01)


def test_one_row_of_each_user_is_no_share_of_the_rows():
    """Samples of 25,000 and 100,000 rows with 1,000 users each: then a million rows have no more."""
    features = {"path": "x", "user": "id"}
    forecast = known(recipe="interactions", features=features)
    found = [result | {"rows": {"train": total - 2000, "valid": 1000, "test": 1000}} for result, total in zip(
        forecast.found, (25_000, 100_000), strict=True)]  # fmt: skip
    assert Forecast(forecast.config, found).rows == {"train": ROWS - 2000, "valid": 1000, "test": 1000}
    shares = known(recipe="interactions", features=features | {"split_by": "random"})
    assert Forecast(shares.config, found).rows == {"train": 980_000, "valid": 10_000, "test": 10_000}


def test_ranking_takes_time_by_its_rows_and_candidates_and_drawing_takes_memory():
    """A second and a microsecond a candidate; 2,000 rows at most, five negatives and the catalogue for each."""
    item = EntityColumns(0, (0,))
    draw = {"epochs": 1, "batch_size": 1000, "negatives": {"per_positive": 4}}
    plain = known()
    forecast = known(train=draw, evaluate={"importance": False, "ranking": {"negatives": 5, "max_rows": 2000}})
    for result, size in zip(forecast.found, (103, 403), strict=True):
        result["inputs"] = ModelInputs((size,), 3, user=item, item=item).to_dict()
        asked = min(result["rows"]["test"], 2000) * (5 + size)
        result["phases"].append(result["phases"][-1] | {"name": "ranking", "seconds": 1 + 1e-6 * asked})
    whole = 2000 * (5 + forecast.id_sizes["id"])
    assert forecast.seconds("evaluate") == pytest.approx(plain.seconds("evaluate") + 1 + 1e-6 * whole)
    assert forecast.steps is not None
    forecast.steps |= {"gpu_bytes": GIB}
    plain.steps |= {"gpu_bytes": GIB}
    # 100,000 rows of valid are evaluated as 500,000 of eleven words instead of ten; 800,000 pairs are known, twice
    more = 500_000 * 44 - 100_000 * 40 + 800_000 * 8
    assert forecast.gpu_bytes("train") - plain.gpu_bytes("train") == more


def with_lists(forecast: Forecast, first: float, last: dict[int, float], most: int | None) -> Forecast:
    """Rows of one list with weights and a vocabulary of its own. first: elements of a row in the smaller sample; last:
    which shares of the rows have how many in the larger one."""
    inputs = ModelInputs((10,), 3, lists=(ListInputs(10, weighted=True),)).to_dict()
    found = []
    for result, shares in zip(forecast.found, ({first: 1.0}, last), strict=True):
        mean = sum(length * share for length, share in shares.items())
        elements = {split: round(rows * mean) for split, rows in result["rows"].items()}
        counted = [list(shares), [share * sum(result["rows"].values()) for share in shares.values()]]
        item = {"owner": "tags", "elements": elements, "lengths": counted, "most": most}
        of_list = {"counts": {"tags": [[1], [elements["train"]]]}, "counted": {"tags": elements["train"]}}
        of_list = {name: result[name] | own for name, own in of_list.items()}
        found.append(result | of_list | {"inputs": inputs, "lists": [item]})
    return Forecast(forecast.config, found)


EVEN, CUT = {2: 0.5, 6: 0.5}, {2: 0.25, 3: 0.25, 5.5: 0.5}  # four elements on average


@pytest.mark.parametrize(
    ("first", "last", "most", "expected"),
    [
        (4, EVEN, None, 4.0),  # tags
        (2, EVEN, None, 4 * math.sqrt(10)),  # histories: twice as long in four times the rows
        (2, EVEN, 10, (2 * math.sqrt(10) + 10) / 2),
        (2, CUT, None, 5.5),  # half of the larger sample's are cut there
    ],
)
def test_lists_take_memory_by_their_elements(first, last, most, expected):
    forecast = with_lists(known(), first, last, most)
    assert forecast.list_length(0) == pytest.approx(expected)
    table = 900_000 * 40 + 2 * 8 + 900_000 * (8 + 8 * expected)  # offsets of 8 bytes; an id and a weight an element
    assert forecast.mapped_bytes("train") == pytest.approx(table, rel=1e-6)
    assert forecast.tables == (900_000, math.ceil(40 + 8 + 8 * expected + 24 / 1e6))
    assert forecast.lists_grow == (expected > 4.4)
    # every element is a value of its own
    assert forecast.id_sizes["tags"] == pytest.approx(800_000 * 4, rel=1e-3)


def test_values_that_are_too_rare_count_in_proportion_to_the_sample():
    forecast = known(preprocess={"min_count": 200})  # 20 in a tenth: those that occur thirty times there, not once
    assert forecast.id_sizes["id"] <= 3 + 800_000 // 200
    assert known(preprocess={"min_count": 2}).id_sizes["id"] == pytest.approx(150_000, rel=0.01)


class KnownProbes:
    """In the place of `Probes`: samples of known costs."""

    def __init__(self, config, folder):
        self.config = config

    def run(self, share, rows_per_part=None):
        return costs(share, ROWS, rows_per_part or round(min(self.config.rows_per_part, 0.8 * ROWS) * share))

    def run_steps(self, sizes, batch_size):
        return dict(STEP)


@pytest.fixture
def known_plan(tmp_path, monkeypatch):
    """A plan, of known costs, for this machine."""
    rows_of(1).to_csv(tmp_path / "x.csv", index=False)
    monkeypatch.setattr(plan_module, "Probes", KnownProbes)
    monkeypatch.setattr(plan_module, "measure", lambda *_: plan_module.Size(ROWS, 1 << 30, False))

    def made(machine: Machine, width: int = 4, handover: str = "auto", **train):
        monkeypatch.setattr(plan_module, "this_machine", lambda *_: machine)
        changes = {"model": {"embedding_width_max": width}, "handover": handover}
        return make_plan(config_of(tmp_path, tmp_path / "x.csv", **changes, **({"train": train} if train else {})))

    return made


def test_a_plan_says_with_which_free_memory_all_is_decided_alike(known_plan):
    wide = known_plan(Machine(20 * GIB, 0, 100 * GIB, 2))
    assert wide.holds_within == (10 * GIB, 40 * GIB)
    for host_bytes in wide.holds_within:
        other = known_plan(Machine(host_bytes, 0, 100 * GIB, 2))
        assert (other.stages, other.residency, other.rows_per_part) == (wide.stages, "host", wide.rows_per_part)
    assert known_plan(Machine(2 * GIB, 0, 100 * GIB, 2)).holds_within is None  # it has made parts smaller
    assert known_plan(Machine(3 * GIB, 0, 100 * GIB, 2), width=600).holds_within is None  # a table is large, or is not
    assert known_plan(Machine(GIB // 2, 0, GIB // 2, 2)).holds_within is None
    assert known_plan(Machine(20 * GIB, 3 * GIB, 100 * GIB, 2)).holds_within is None


def test_parts_become_smaller_until_they_fit_with_a_margin(known_plan):
    machine = Machine(2 * GIB, 0, 100 * GIB, 2)
    plan = known_plan(machine)
    parts = [800_000 >> halvings for halvings in range(5)]
    peaks = {rows: FIXED + A_ROW * ROWS + A_PART_ROW * rows for rows in parts}
    expected = max(rows for rows, peak in peaks.items() if 1.3 * peak <= machine.host_bytes)
    assert expected < 800_000
    assert plan.fits
    assert plan.rows_per_part == expected
    assert plan.stages[0].host_bytes == pytest.approx(peaks[expected], rel=1e-3)
    assert "not 1,000,000 as configured" in plan.rows_per_part_because


def test_what_cannot_fit_is_refused_with_stage_sizes_and_advice(known_plan, capsys):
    plan = known_plan(Machine(GIB // 2, 0, GIB // 2, 2))
    assert not plan.fits
    assert plan.reasons[0].startswith("features: ")
    assert "of host memory, 510 MiB are free" in plan.reasons[0]
    assert any("of disk" in reason for reason in plan.reasons)
    assert any("cluster=" in text for text in plan.advice)
    assert any("gc --keep" in text for text in plan.advice)
    plan.show()
    assert "REFUSED" in capsys.readouterr().out


def test_a_table_that_takes_much_of_the_memory_is_named(known_plan, capsys):
    """H3: 150,000 ids get 600 numbers by the rule of fastai, some 340 MiB, and the plan told bytes of stages alone."""
    machine = Machine(3 * GIB, 0, 100 * GIB, 2)
    plan = known_plan(machine, width=600)
    (told,) = plan.large_tables
    ids = plan.id_sizes["id"]
    table = f"{ids:,} ids x 600 numbers takes {about_bytes(ids * 2400)}, 11% of "
    assert told.startswith(f"column 'id': its table of {table}")
    assert "Lower model.embedding_width_max" in told
    assert plan.to_dict()["large_tables"] == (told,)
    plan.show()
    assert f"large table    {told}" in capsys.readouterr().out
    assert known_plan(machine).large_tables == ()


def test_a_refused_plan_ends_in_its_own_exit_code(known_plan, tmp_path, capsys):
    known_plan(Machine(1 << 20, 0, GIB, 2))
    config = config_of(tmp_path, tmp_path / "x.csv", train={"epochs": 1})
    (tmp_path / "c.yaml").write_text(json.dumps(config.to_dict()))
    assert main(["plan", "--json", "--config", str(tmp_path / "c.yaml")]) == 3
    told = json.loads(capsys.readouterr().out)
    # the model alone is too large, so no step was tried and no time is claimed
    assert told["fits"] is False
    assert told["seconds"] is None
    assert any("no step could be tried" in text for text in told["unknown"])


def test_residency_follows_from_memory(known_plan, monkeypatch):
    wide = Machine(20 * GIB, 0, 100 * GIB, 2)
    assert known_plan(wide).residency == "host"
    monkeypatch.setattr(plan_module, "MARGIN", 0.0)  # parts stay
    tables = dict(STEP) | {"more_host_bytes": 9 * GIB}
    monkeypatch.setattr(KnownProbes, "run_steps", lambda *_: tables)
    # 300 MiB held and 9 GiB of model fit, with 34 MiB of mapped tables they do not
    tight = known_plan(Machine(FIXED + 9 * GIB + (10 << 20), 0, 100 * GIB, 2))
    assert tight.fits
    assert tight.residency == "stream"
    assert any("disk was not measured" in text for text in tight.unknown)
    tables["gpu_bytes"] = 2 * GIB
    on_gpu = known_plan(Machine(20 * GIB, 3 * GIB, 100 * GIB, 2))
    assert (on_gpu.residency, on_gpu.fits) == ("device", True)
    too_small = known_plan(Machine(20 * GIB, GIB, 100 * GIB, 2))
    assert (too_small.residency, too_small.fits) == ("device", False)  # the model alone takes 2 GiB
    assert "device=cpu" in too_small.advice


@pytest.mark.parametrize(
    ("words", "host", "setting", "residency", "fits"),
    [
        (1000, 20, "auto", "device", True),  # 3.4 GiB of tables in 8 GiB
        (2500, 20, "auto", "host", True),  # 8.4 GiB, in page-locked memory
        (10_000, 20, "auto", "stream", True),  # 34 GiB
        (10_000, 20, "stream", "stream", True),
        (10_000, 20, "device", "device", False),
        (10_000, 120, "host", "host", True),
    ],
)
def test_beside_a_gpu_the_plan_follows_the_train_stages_own_residency(
    known_plan, monkeypatch, words, host, setting, residency, fits
):
    """P22: runs that residency streams were refused, for whole tables would not fit on the GPU."""
    monkeypatch.setattr(plan_module, "MARGIN", 0.0)  # parts stay
    monkeypatch.setattr(KnownProbes, "run", lambda self, share, rows_per_part=None: costs(share, ROWS, 1000, words))
    monkeypatch.setattr(KnownProbes, "run_steps", lambda *_: STEP | {"gpu_bytes": GIB})
    plan = known_plan(Machine(host * GIB, 8 * GIB, 100 * GIB, 2), residency=setting)
    assert (plan.residency, plan.fits) == (residency, fits), plan.reasons
    held = GIB - STEP["table_bytes"]
    assert plan.stages[2].gpu_bytes == held + {"device": 900_000}.get(residency, 100_000) * words * 4
    if not fits:
        assert "residency=stream, or auto" in " ".join(plan.reasons)
        assert "train.residency=auto" in plan.advice


SPLITS = {"train": 800_000, "valid": 100_000, "test": 100_000}


@pytest.mark.parametrize(
    ("engine", "words", "handover", "residency", "told"),
    [
        ("cudf", 1000, "auto", "auto", "device"),  # 3.7 GiB in 70 % of 8 GiB
        ("cudf", 2500, "on", "auto", "off"),  # 9.3 GiB
        ("pandas", 1000, "auto", "auto", "host"),  # in half of 20 GiB, and on the GPU to train
        ("pandas", 1450, "auto", "auto", "host"),
        ("pandas", 1600, "auto", "auto", "off"),  # 6.0 GiB are more than the GPU takes
        ("cudf", 1000, "off", "auto", "off"),
        ("cudf", 1000, "on", "stream", "off"),
    ],
)
def test_the_plan_counts_what_a_handover_keeps_in_memory(
    known_plan, monkeypatch, capsys, engine, words, handover, residency, told
):
    """By encode's own rule; samples run without. Of all splits from encode on, where training counts two of them."""
    monkeypatch.setattr(plan_module, "MARGIN", 0.0)  # parts stay
    monkeypatch.setattr(plan_module, "resolve_engine", lambda name: engine)
    monkeypatch.setattr("gigabatch.pipeline.stages.part_rows.total_device_memory", lambda device: 9 * GIB)
    monkeypatch.setattr(KnownProbes, "run", lambda self, share, rows_per_part=None: costs(share, ROWS, 1000, words))
    monkeypatch.setattr(KnownProbes, "run_steps", lambda *_: STEP | {"gpu_bytes": GIB})
    machine = Machine(20 * GIB, 8 * GIB, 100 * GIB, 2)
    plan, without = (known_plan(machine, handover=how, residency=residency) for how in (handover, "off"))
    assert plan.handover == told, plan.handover_because
    rows = {"encode": sum(SPLITS.values()), "train": SPLITS["test"]}
    for stage, plain in zip(plan.stages, without.stages, strict=True):
        kept = rows.get(stage.stage, 0) * words * 4
        blocks = 2 * (64 << 20) if kept else 0
        assert stage.gpu_bytes - plain.gpu_bytes == (kept if told == "device" else 0)
        assert stage.host_bytes - plain.host_bytes == {"device": blocks, "host": kept, "off": 0}[told]
    plan.show()
    assert f"handover       {told}: " in capsys.readouterr().out
    if words in (2500, 1600):
        assert "do not fit" in plan.handover_because
        assert about_bytes(ROWS * words * 4) in plan.handover_because


def test_a_handover_that_training_has_no_room_beside_is_told_with_what_to_do(known_plan, monkeypatch):
    """70 % of 8 GiB take the rows; the model's 4 GiB beside them do not fit."""
    monkeypatch.setattr(plan_module, "MARGIN", 0.0)
    monkeypatch.setattr(plan_module, "resolve_engine", lambda name: "cudf")
    monkeypatch.setattr("gigabatch.pipeline.stages.part_rows.total_device_memory", lambda device: 9 * GIB)
    monkeypatch.setattr(KnownProbes, "run", lambda self, share, rows_per_part=None: costs(share, ROWS, 1000, 1200))
    # Without the handover 900,000 rows and the model take 8.0 GiB, with it the test split's 0.4 more.
    monkeypatch.setattr(KnownProbes, "run_steps", lambda *_: STEP | {"gpu_bytes": 4 * GIB - (100 << 20)})
    machine = Machine(40 * GIB, 8 * GIB, 100 * GIB, 2)
    plan = known_plan(machine)
    assert (plan.handover, plan.fits) == ("device", False)
    assert plan.advice[0] == "handover=off"
    assert known_plan(machine, handover="off").fits


def test_a_plan_beside_cudf_has_a_number_for_rows_per_part(known_plan, monkeypatch):
    """By the GPU's memory and the length of the input's lines; the probes are scaled from it."""
    monkeypatch.setattr(plan_module, "resolve_engine", lambda name: "cudf")
    monkeypatch.setattr("gigabatch.pipeline.stages.part_rows.total_device_memory", lambda device: 16 << 20)
    plan = known_plan(Machine(20 * GIB, 8 * GIB, 100 * GIB, 2))
    assert 1 << 14 < plan.rows_per_part < 1 << 17  # lines of some 20 bytes in a MiB
    assert "by the GPU's memory" in plan.rows_per_part_because


# --- the machine


def test_memory_is_the_least_of_the_machine_and_its_cgroup(tmp_path):
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 900 kB\nMemAvailable:     700 kB\n")
    groups.mkdir()
    assert available_memory(proc, groups) == 700 * 1024
    (proc / "self" / "cgroup").write_text("0::/box/inner\n")
    (groups / "box" / "inner").mkdir(parents=True)
    (groups / "memory.max").write_text("max\n")
    for folder, limit, used in ((groups / "box", 400_000, 150_000), (groups / "box" / "inner", 600_000, 0)):
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text("anon 5\ninactive_file 50000\n")
    assert available_memory(proc, groups) == 400_000 - 150_000 + 50_000
    v1 = tmp_path / "v1" / "memory"
    v1.mkdir(parents=True)
    (v1 / "memory.limit_in_bytes").write_text("9223372036854771712\n")  # none
    (v1 / "memory.usage_in_bytes").write_text("1000\n")
    (v1 / "memory.stat").write_text("total_inactive_file 0\n")
    assert available_memory(proc, tmp_path / "v1") == 700 * 1024
    (v1 / "memory.limit_in_bytes").write_text("5000\n")
    assert available_memory(proc, tmp_path / "v1") == 4000


def test_amounts_are_rounded_for_people():
    assert [about_bytes(n) for n in (0, 7 << 20, 857 << 20, 3.44 * GIB, 21.7 * GIB, 3 << 40)] == [
        "0 MiB", "7 MiB", "860 MiB", "3.4 GiB", "22 GiB", "3.0 TiB",
    ]  # fmt: skip
    assert [about_seconds(s) for s in (0.42, 55.4, 750, 9000)] == ["0.4 s", "55 s", "12 min", "2.5 h"]


@pytest.mark.parametrize("handover", ["auto", "on"])
def test_the_writing_of_a_samples_stage_is_not_counted_in_the_next(tmp_path, monkeypatch, handover):
    config = known(handover=handover).config
    asked = []
    monkeypatch.setattr("gigabatch.pipeline.lab.plan.forecast.sample_files", lambda *_: (config.features, 0.1))
    monkeypatch.setattr(Probes, "_spawn", lambda self, task: asked.append(task) or {})
    Probes(config, tmp_path).run(0.1)
    assert asked[0]["config"]["handover"] == "off"
