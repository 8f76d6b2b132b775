"""Texts of several values each: `gigabatch init` makes lists of them, where values come again in other texts."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gigabatch import fit
from gigabatch.features.engines.arrow_tables import arrow_table
from gigabatch.pipeline.bundle import load_bundle
from gigabatch.pipeline.init.columns import list_separator
from gigabatch.pipeline.init.draft import draft_config
from gigabatch.pipeline.init.frame import draft_frame
from gigabatch.pipeline.init.write import init
from gigabatch.pipeline.stages.stages import Pipeline

ROWS = 900
SYMPTOMS = ["dry cough", "high fever", "back pain", "rash", "nausea", "sore throat", "fatigue", "chills"]


def notes(separator=", ", seed=0):
    draw = np.random.default_rng(seed)
    lists = [list(draw.choice(SYMPTOMS, draw.integers(1, 4), replace=False)) for _ in range(ROWS)]
    ill = np.array(["rash" in one for one in lists]) ^ (draw.random(ROWS) < 0.02)
    texts = [separator.join(one) for one in lists]
    return pd.DataFrame({"notes": texts, "age": draw.integers(20, 80, ROWS), "ill": ill.astype("int64")})


@pytest.mark.parametrize("separator", [", ", ",", "; ", "|"])
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_phrases_are_lists_of_values(tmp_path, separator, ending):
    table = notes(separator)
    path = tmp_path / f"visits.{ending}"
    if ending == "csv":
        table.to_csv(path, index=False)
    else:
        pq.write_table(pa.Table.from_pandas(table), path)
    made = draft_config(str(path), "ill", None, 10_000)
    assert made.features["lists"] == {"notes": {"elements": "string"}}
    assert made.features.get("list_separator", "|") == separator
    assert not made.categories
    assert made.notes["notes"] == f"{len(SYMPTOMS)} values in {table['notes'].nunique()} texts"
    assert sum("notes holds several values" in remark for remark in made.remarks) == 1


def test_an_empty_text_is_a_list_without_a_value_and_is_not_counted(tmp_path):
    table = notes("; ").astype({"notes": "object"})
    table.loc[::7, "notes"] = ""
    table.loc[1::7, "notes"] = None
    pq.write_table(pa.Table.from_pandas(table), tmp_path / "visits.parquet")
    made = draft_config(str(tmp_path / "visits.parquet"), "ill", None, 10_000)
    texts = {text for text in table["notes"] if text}
    assert made.notes["notes"] == f"{len(SYMPTOMS)} values in {len(texts)} texts"


def test_what_is_written_trains_and_takes_raw_rows(tmp_path):
    table = notes()
    table.to_csv(tmp_path / "visits.csv", index=False)
    init(str(tmp_path / "visits.csv"), "ill", str(tmp_path / "visits.yaml"))
    run = Pipeline.from_config(tmp_path / "visits.yaml", {
        "artifacts": str(tmp_path / "artifacts"), "runs": str(tmp_path / "runs"), "evaluate.importance": False,
        "evaluate.baselines": [], "device": "cpu", "train.epochs": 10,
    }).train()  # fmt: skip
    assert run.summary["metrics"]["test"]["auc"] > 0.9
    found = load_bundle(run.path / "model").predict_raw(
        pd.DataFrame({"notes": ["rash, fatigue", "chills, fatigue"], "age": [50, 50]})
    )
    assert found["ill"][0] > 0.5 > found["ill"][1]


def test_fit_takes_phrases_of_a_frame_for_lists(tmp_path):
    table = notes()
    run = fit(
        table, {"artifacts": str(tmp_path / "artifacts"), "runs": str(tmp_path / "runs")},
        {"evaluate.importance": False, "evaluate.baselines": [], "device": "cpu", "train.epochs": 10}, target="ill",
        name="visits",
    )  # fmt: skip
    found = run.predict(pd.DataFrame({"notes": ["rash, fatigue", "chills, fatigue"], "age": [50, 50]}))
    assert found["ill"][0] > 0.5 > found["ill"][1]
    made = draft_frame(arrow_table(table, "rows"), labels={"ill": None}, categorical=["notes"], phrases=True)
    assert made.categories == {"notes": "string"}  # the user says so


def test_texts_that_are_one_value_each_have_no_separator():
    draw = np.random.default_rng(0)
    cities = [f"{city}, {land}" for city, land in draw.choice([f"c{n}" for n in range(9)], (500, 2))]
    companies = [f"Firm {n}, Inc." if n % 3 else f"Firm {n}" for n in range(500)]
    few = list(draw.choice(["a", "a, b", "b, c"], 500))
    blanks = [text.replace(", ", "," if n % 2 else ", ") for n, text in enumerate(notes()["notes"])]
    seldom = ["red"] * 450 + list(notes()["notes"][:50])
    for texts in (cities, companies, few, blanks, seldom, [], [None] * 50):
        assert list_separator(pd.Series(texts, dtype="object")) == ""


def test_one_separator_is_chosen_and_the_other_columns_are_told(tmp_path):
    table = notes()
    table["tags"], table["more"] = notes("|", 1)["notes"], notes(seed=2)["notes"]
    table.to_csv(tmp_path / "visits.csv", index=False)
    made = draft_config(str(tmp_path / "visits.csv"), "ill", None, 10_000)
    assert list(made.features["lists"]) == ["notes", "more"]
    assert made.categories == {"tags": "string"}
    assert any("tags holds several values" in one and "another sign, '|'" in one for one in made.remarks)


def test_texts_alone_stay_categories(tmp_path):
    """Rows need a feature beside lists."""
    notes().drop(columns="age").to_csv(tmp_path / "visits.csv", index=False)
    assert draft_config(str(tmp_path / "visits.csv"), "ill", None, 10_000).categories == {"notes": "string"}
