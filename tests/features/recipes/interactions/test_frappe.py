"""Frappe by settings alone: conf/frappe.yaml on a synthetic file of its format, in which context matters."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pydantic import TypeAdapter
from ruamel.yaml import YAML

from gigabatch.features.errors import DataError
from gigabatch.features.recipes import recipe_class
from gigabatch.features.recipes.base import SplitFractions
from gigabatch.features.synthetic.movielens import CONTEXTS, FRAPPE, AppWorld, main, write_frappe

CONF = Path(__file__).resolve().parents[4] / "conf" / "frappe.yaml"
SPLITS = ("train", "valid", "test")
CONTEXT_COLUMNS = ["daytime", "weekday", "isweekend", "homework", "cost", "weather", "country", "city"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("frappe")
    write_frappe(found, 40, 60)
    return found


@pytest.fixture(scope="module")
def raw(folder):
    return pd.read_csv(folder / "frappe.csv", sep="\t", dtype="str")


def build(folder, **settings):
    given = YAML(typ="safe", pure=True).load(CONF.read_text())
    recipe = recipe_class(given["recipe"])
    chosen = TypeAdapter(recipe.Settings).validate_python(given["features"] | {"path": str(folder / "frappe.csv")})
    return recipe(replace(chosen, **settings)).build("pandas")


def all_rows(tables):
    return pd.concat([tables.splits[name] for name in SPLITS]).sort_values("row_number")


def test_the_header_is_that_of_frappe(raw):
    published = "user item cnt daytime weekday isweekend homework cost weather country city"
    assert list(raw.columns) == list(FRAPPE) == published.split()


def test_every_row_of_the_file_is_a_positive_with_its_context(folder, raw):
    tables = build(folder)
    rows = all_rows(tables)
    assert rows["row_number"].tolist() == list(range(len(raw)))
    for name in ("user", "item", *CONTEXT_COLUMNS):
        assert rows[name].tolist() == raw[name].tolist()
    assert (rows["target"] == 1).all()
    assert sorted(tables.splits["valid"]["user"]) == sorted(set(raw["user"]))  # the configuration leaves one out
    assert tables.schema.names("categorical") == ["user", "item", *CONTEXT_COLUMNS]
    assert [entity.columns for entity in tables.schema.entities] == [("user",), ("item",)]


def test_the_published_shares_are_a_setting(folder, raw):
    tables = build(folder, split_by="random", split=SplitFractions(0.7, 0.2, 0.1))
    assert [len(tables.splits[name]) / len(raw) for name in SPLITS] == pytest.approx([0.7, 0.2, 0.1], abs=0.02)


def test_context_matters_in_the_synthetic_file(raw):
    world = AppWorld.make(40, 60, 7)
    users, items = raw["user"].astype(int).to_numpy(), raw["item"].astype(int).to_numpy()
    contexts = {name: raw[name].map(values.index).to_numpy() for name, values in CONTEXTS.items()}
    right = world.scores(users, contexts)
    rng = np.random.default_rng(0)
    wrong = world.scores(users, {name: rng.permutation(values) for name, values in contexts.items()})

    def mean_rank(scores):
        return (scores > scores[np.arange(len(items)), items][:, None]).sum(1).mean()

    popularity = np.broadcast_to(world.popularity, right.shape)
    assert mean_rank(right) < 0.7 * mean_rank(wrong)
    assert mean_rank(right) < 0.5 * mean_rank(popularity)


def test_the_command_writes_frappe(tmp_path, capsys):
    main(["--format", "frappe", "--users", "10", "--items", "30", "--out", str(tmp_path)])
    frame = pd.read_csv(tmp_path / "frappe.csv", sep="\t")
    assert f"{len(frame):,} interactions of 10 users" in capsys.readouterr().out
    assert not frame.duplicated(["user", "item", *CONTEXT_COLUMNS]).any()
    assert (frame["isweekend"] == "weekend").tolist() == frame["weekday"].isin(["saturday", "sunday"]).tolist()


@pytest.mark.parametrize("sizes", [(0, 10, 10), (5, 1, 10), (5, 10, 2)])
def test_a_synthetic_file_of_no_size_is_refused(tmp_path, sizes):
    with pytest.raises(DataError, match="at least"):
        write_frappe(tmp_path, *sizes)
