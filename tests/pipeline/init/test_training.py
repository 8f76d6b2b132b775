"""What `init` and `fit` choose by the rows, and what takes that choice back."""

import numpy as np
import pandas as pd
import pytest
import yaml

from gigabatch import GigabatchClassifier, fit
from gigabatch.pipeline.init.training import training_for
from gigabatch.pipeline.init.write import write_config


def rows_of(number):
    random = np.random.default_rng(5)
    city = random.choice(["Oslo", "Rom", "Bonn"], number)
    price = random.lognormal(size=number)
    return pd.DataFrame({"city": city, "price": price, "sold": np.where((price > 1) ^ (city == "Rom"), "yes", "no")})


@pytest.mark.parametrize(
    ("rows", "has_ids", "kind", "epochs"),
    [
        (999, True, None, None),
        (1_000, True, "tabm", 15),
        (5_000, True, "tabm", 15),
        (5_000, False, "tabm", None),
        (60_000, True, "tabm", None),
        (60_001, True, None, None),
    ],
)
def test_few_rows_get_members_and_passes(rows, has_ids, kind, epochs):
    found = training_for(rows, has_ids)
    assert found.get("model", {}).get("kind") == kind
    assert found.get("preprocess", {}).get("scale") == (None if kind is None else "robust")
    assert found.get("train", {}).get("epochs") == epochs


def test_the_file_says_model_scale_and_epochs(tmp_path):
    rows_of(1_200).to_csv(tmp_path / "shop.csv", index=False)
    path, _ = write_config(str(tmp_path / "shop.csv"), "sold", tmp_path / "shop.yaml")
    found = yaml.safe_load(path.read_text())
    assert {name: found[name] for name in ("preprocess", "model", "train")} == training_for(1_200, True)
    assert "kind: tabm  # the better one" in path.read_text()


def test_an_override_of_the_model_takes_the_choice_back(tmp_path):
    places = {"artifacts": str(tmp_path / "a"), "runs": str(tmp_path / "r"), "train.epochs": 1}
    chosen, own = (fit(rows_of(1_200), places, more, target="sold") for more in ({}, {"model.dropout": 0.1}))
    kinds = [
        (run.summary["config"]["model"]["kind"], run.summary["config"]["preprocess"]["scale"]) for run in (chosen, own)
    ]
    assert kinds == [("tabm", "robust"), ("tabular", True)]


def test_an_estimator_chooses_as_fit_does_unless_it_is_told():
    rows = rows_of(1_200)
    chosen = GigabatchClassifier(random_state=0, train={"epochs": 1}).fit(rows[["city", "price"]], rows["sold"])
    own = GigabatchClassifier(random_state=0, train={"epochs": 1}, model="lr").fit(
        rows[["city", "price"]], rows["sold"]
    )
    sized = GigabatchClassifier(random_state=0, train={"epochs": 1}, model_settings={"layers": [8]})
    sized.fit(rows[["city", "price"]], rows["sold"])
    assert [type(one.bundle_.model).__name__ for one in (chosen, own, sized)] == [
        "TabM",
        "LogisticRegression",
        "TabularModel",
    ]
