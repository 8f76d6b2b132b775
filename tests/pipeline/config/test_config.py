"""Configuration: checked as a whole before any work, with errors that say what is possible."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

import pytest
import torch
from pydantic import ValidationError
from ruamel.yaml import YAML

from gigabatch.features.encoding.settings import CategorySettings, NumberSettings
from gigabatch.features.engines.frame import ENGINES
from gigabatch.features.recipes.flights.recipe import FlightsSettings
from gigabatch.features.setting_checks import LONG_NAMES, TIME_UNITS
from gigabatch.loaders.order.order import start_state
from gigabatch.models.shelf import MODELS, model_class, setting_names
from gigabatch.pipeline.config.config import (
    ConfigError,
    RunConfig,
    Settings,
    TrainSettings,
    checked_settings,
    load_config,
    model_choice,
    parse_config,
)

ROOT = Path(__file__).resolve().parents[3]
SMALLEST = "name: a\nrecipe: flights\n"


@pytest.fixture
def load(tmp_path):
    def load(text: str, *overrides: str | Mapping[str, Any]) -> RunConfig:
        path = tmp_path / "run.yaml"
        path.write_text(text)
        return load_config(path, overrides)

    return load


@pytest.mark.parametrize("path", sorted((ROOT / "conf").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_configuration_of_the_repository_loads(path):
    config = load_config(path)
    assert config.name == YAML(typ="safe").load(path.read_text())["name"]


def test_defaults_are_filled_in(load):
    config = load(SMALLEST)
    assert config.features == FlightsSettings()
    assert (config.seed, config.engine, config.device) == (1, "auto", "auto")


def test_every_engine_can_be_chosen():
    assert get_args(RunConfig.model_fields["engine"].annotation) == ENGINES


@pytest.mark.parametrize(
    ("text", "key", "suggestion", "known"),
    [
        ("sede: 3", "sede", "seed", "recipe"),
        ("train: {epoch: 3}", "train.epoch", "train.epochs", "batch_size"),
        ("features: {late_minute: 3}", "features.late_minute", "features.late_minutes", "smoothing"),
        ("features: {split: {trian: 0.5}}", "features.split.trian", "features.split.train", "valid"),
        ("preprocess: {min_counts: 3}", "preprocess.min_counts", "preprocess.min_count", "indicator"),
        (
            "preprocess: {columns: {a: {min_cuont: 3}}}",
            "preprocess.columns.a.min_cuont",
            "preprocess.columns.a.min_count",
            "oov_buckets",
        ),
        ("nightly: {tolerence: 0.1}", "nightly.tolerence", "nightly.tolerance", "confidence"),
        ("evaluate: {ranking: {kk: 3}}", "evaluate.ranking.kk", "evaluate.ranking.k", "max_rows"),
        ("model: {layrs: [3]}", "model.layrs", "model.layers", "dropout"),
        # Of another section: the same name before a similar one, and the file's own keys before any import.
        ("epochs: 3", "epochs", "train.epochs", "preprocess"),
        ("train: {seed: 3}", "train.seed", "seed", "epochs"),
        ("model: {layers: [8]}\nlayer: [3]", "layer", "model.layers", "model"),
    ],
)
def test_an_unknown_key_is_named_with_the_known_ones_and_a_suggestion(load, text, key, suggestion, known):
    with pytest.raises(ConfigError) as error:
        load(SMALLEST + text)
    assert f"unknown key '{key}'. Did you mean '{suggestion}'? Known keys: " in str(error.value)
    assert known in str(error.value).partition("Known keys: ")[2]


@pytest.mark.parametrize("key", ["model.name", "model.type"])
def test_what_others_call_the_kind_of_a_model_is_understood(load, key):
    with pytest.raises(ConfigError, match=rf"unknown key '{key}'\. Did you mean 'model\.kind'\?"):
        load(SMALLEST, f"{key}=deepfm")


def test_settings_of_the_same_name_are_all_suggested(load):
    suggested = r"'max_rows'\. Did you mean 'evaluate\.ranking\.max_rows' or 'serve\.max_rows'\?"
    with pytest.raises(ConfigError, match=suggested):
        load(SMALLEST, "max_rows=3")


def test_every_unknown_key_is_told_at_once_and_none_is_suggested(load):
    with pytest.raises(ConfigError, match=r"'train\.epoch'.* 'sede'.* Did you mean 'seed'") as error:
        load(SMALLEST, "train.epoch=3", "sede=1", "nightly.epoch=3")
    assert "mean 'train.epoch'" not in str(error.value)


def test_what_the_recipe_and_the_model_refuse_comes_after_all_else(load):
    with pytest.raises(ConfigError, match=r"run\.yaml: train\.epochs: [^:]* \(found -1\)\.$"):
        load(SMALLEST, "train.epochs=-1", "features.late_minute=3", "model.layrs=3")


def test_text_in_the_place_of_a_list_is_shown_as_one(load):
    with pytest.raises(ConfigError, match=r"model\.layers: Input should be a list: \[64,32\] \(found '64,32'\)\.$"):
        load(SMALLEST, "model.layers=64,32")
    with pytest.raises(ConfigError, match=r"model\.layers: Input should be a list: \[64\] \(found 64\)\.$"):
        load(SMALLEST, "model.layers=64")


def test_an_unknown_key_that_resembles_nothing_gets_no_suggestion(load):
    with pytest.raises(ConfigError, match=r"unknown key 'zzz'\. Known keys: artifacts"):
        load(SMALLEST + "zzz: 1")


def test_overrides_reach_every_section(load):
    config = load(
        SMALLEST + "train: {epochs: 7, lr_max: 0.5}",
        "seed=7", "train.epochs=3", "model.layers=[64, 32]", "features.split.train=0.7", "features.split.valid=0.2",
    )  # fmt: skip
    assert (config.seed, config.train.epochs, config.train.lr_max) == (7, 3, 0.5)
    assert config.model.settings.layers == (64, 32)
    assert (config.features.split.train, config.features.split.test) == (0.7, 0.1)


@pytest.mark.parametrize("run", ["12e345678901", "123456789012", "000012345678", "1_000", "0x12", ".5", "0b11"])
def test_a_text_that_yaml_would_read_as_a_number_stays_text_in_an_override(load, run):
    """One in a hundred ids of runs, 12 hexadecimal digits, is a number (or infinite) to YAML."""
    config = load("name: x\nrecipe: flights\n", f"train.start_from={run}", "name=5", "artifacts=2026")
    assert (config.train.start_from, config.name, config.artifacts) == (run, "5", Path("2026"))
    assert load("name: x\nrecipe: flights\n", f"train.start_from='{run}'").train.start_from == run
    assert load("name: x\nrecipe: flights\n", "train.start_from=null").train.start_from is None


@pytest.mark.parametrize("run", ["12e345678901", "0123", "1.5"])
def test_a_number_in_the_file_where_a_text_belongs_is_an_error_that_says_what_helps(load, run):
    with pytest.raises(ConfigError, match=r"train\.start_from: .*quotes"):
        load(f"name: x\nrecipe: flights\ntrain: {{start_from: {run}}}\n")


def test_single_columns_take_settings_of_categories_or_of_numbers(load):
    columns = load(
        "name: x\nrecipe: flights\npreprocess: {columns: {price: {bins: 16}, city: {min_count: 3}}}\n",
        "preprocess.columns.age={bins: 9}",
    ).preprocess.columns
    assert (columns["price"], columns["age"]) == (NumberSettings(bins=16), NumberSettings(bins=9))
    assert columns["city"] == CategorySettings(min_count=3)
    found = load("name: x\nrecipe: flights\npreprocess: {scale: robust, columns: {price: {scale: false}}}\n").preprocess
    assert [found.number_settings(name).scale for name in ("price", "age")] == [False, "robust"]
    with pytest.raises(ConfigError, match=r"preprocess\.columns\.price\.scale.*robust"):
        load("name: x\nrecipe: flights\npreprocess: {columns: {price: {scale: robustly}}}\n")
    with pytest.raises(ConfigError, match=r"preprocess\.scale.*robust"):
        load("name: x\nrecipe: flights\npreprocess: {scale: robustly}\n")
    with pytest.raises(ConfigError, match=r"unknown key 'preprocess.columns.city.binz'.*bins"):
        load("name: x\nrecipe: flights\npreprocess: {columns: {city: {binz: 3}}}\n")
    with pytest.raises(ConfigError, match=r"unknown key 'preprocess.columns.city.bins'.*: max_size, min"):
        load("name: x\nrecipe: flights\npreprocess: {columns: {city: {min_count: 3, bins: 4}}}\n")


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("price: {bins: 1}", r"preprocess\.columns\.price: .*2 to 1024; found 1"),
        ("price: {bins: 4.5}", r"preprocess\.columns\.price\.bins: .*4\.5"),
        ("price: {bins: null, scale: 2}", r"preprocess\.columns\.price\.scale\..*found 2"),
        ("city: {min_count: 0}", r"preprocess\.columns\.city: .*min_count must be at least 1"),
        ("city: {min_count: two}", r"preprocess\.columns\.city\.min_count: .*'two'"),
        ("price: 4", r"preprocess\.columns\.price: expected keys and values, found int"),
    ],
)
def test_a_value_that_one_kind_of_column_refuses_is_not_taken_for_the_other_kind(load, column, message):
    with pytest.raises(ConfigError, match=message):
        load(f"{SMALLEST}preprocess: {{columns: {{{column}}}}}\n")


def test_a_text_that_yaml_would_read_as_a_date_stays_text_in_an_override(load):
    config = load(SMALLEST, "name=2026-11-23", "train.start_from=2026-11-22", "preprocess.from=2026-11-21  # older")
    assert (config.name, config.train.start_from, config.preprocess.from_) == ("2026-11-23", "2026-11-22", "2026-11-21")
    with pytest.raises(ConfigError, match=r"name: .*reads this text as a date unless it stands in quotes"):
        load("name: 2026-11-23\nrecipe: flights\n")


def test_an_override_may_open_a_section_that_the_file_leaves_empty(load):
    assert load(SMALLEST + "train:\n", "train.epochs=3").train.epochs == 3


@pytest.mark.parametrize("kind", [dict, MappingProxyType])
def test_overrides_given_as_mappings_stay_as_they_are(load, kind):
    inner = {"epochs": 1, "gradients": kind({"compress": "dct"})}
    override = kind({"train": kind(inner), "model.layers": [8]})
    config = load(SMALLEST, override, "train.epochs=2", "train.gradients.drop=0.5", {"train.lr_max": 0.5})
    assert (config.train.epochs, config.train.lr_max) == (2, 0.5)
    assert (config.train.gradients.compress, config.train.gradients.drop) == ("dct", 0.5)
    assert inner == {"epochs": 1, "gradients": {"compress": "dct"}}
    assert override == {"train": inner, "model.layers": [8]}


def test_an_override_that_holds_itself_is_refused(load):
    inner = {}
    inner["train"] = MappingProxyType(inner)
    with pytest.raises(ConfigError, match="override train: nested too deeply; 50 levels"):
        load(SMALLEST, {"train": inner})


def test_an_override_of_one_alias_leaves_the_other(load):
    text = SMALLEST + "preprocess:\n  columns:\n    a: &same {min_count: 2}\n    b: *same\n"
    columns = load(text, "preprocess.columns.a.min_count=5").preprocess.columns
    assert (columns["a"].min_count, columns["b"].min_count) == (5, 2)


@pytest.mark.parametrize("override", ["seed", "=3", "name.x=3", "seed=[1", "train.epochs=lots"])
def test_an_override_that_makes_no_sense_is_an_error(load, override):
    with pytest.raises(ConfigError):
        load(SMALLEST, override)


@pytest.mark.parametrize(("text", "value"), [("1e-3", 0.001), ("1E2", 100.0), (".5", 0.5)])
def test_numbers_are_those_of_yaml_1_2(load, text, value):
    assert load(SMALLEST + f"train: {{schedule_settings: {{div: {text}}}}}").train.schedule_settings == {"div": value}
    assert load(SMALLEST, f"train.schedule_settings.div={text}").train.schedule_settings == {"div": value}


def test_units_of_time_have_the_names_that_steps_take(load):
    taken = set(get_args(type(load(SMALLEST).nightly).model_fields["time_unit"].annotation))
    assert taken == {"auto", "none", *TIME_UNITS, *LONG_NAMES}


@pytest.mark.parametrize("word", ["no", "off", "yes", "on"])
def test_no_is_a_word_and_not_false(load, word):
    assert load(f"name: {word}\nrecipe: flights\n").name == word


def test_a_missing_file_lists_the_configurations_beside_it(tmp_path):
    (tmp_path / "flights.yaml").write_text(SMALLEST)
    with pytest.raises(ConfigError, match=r"flight\.yaml: no such file\. Found there: .*flights\.yaml"):
        load_config(tmp_path / "flight.yaml")
    with pytest.raises(ConfigError, match="Found there: nothing"):
        load_config(tmp_path / "nowhere" / "flight.yaml")


def test_a_pipe_is_read_once_for_all_who_ask():
    read, write = os.pipe()
    os.write(write, SMALLEST.encode())
    os.close(write)
    try:
        assert [load_config(f"/dev/fd/{read}", [f"seed={seed}"]).seed for seed in (3, 4)] == [3, 4]
    finally:
        os.close(read)


def test_a_folder_in_place_of_a_file_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)


@pytest.mark.parametrize("text", ["seed: 1\nseed: 2\n", "train: {epochs: 1, epochs: 2}\n"])
def test_a_key_that_stands_twice_is_an_error(load, text):
    with pytest.raises(ConfigError, match=r"not valid YAML \(.*duplicate key .*line \d"):
        load(SMALLEST + text)


@pytest.mark.parametrize("lines", [["a: string", "- b"], ["- a", "b: string"], ["- a", "- c", "b: string"]])
def test_a_list_and_a_mapping_in_one_block_are_named(load, lines):
    block = "".join(f"    {line}\n" for line in lines)
    message = (
        rf"not valid YAML \(.*line {4 + len(lines)}, .*\)\. A list \(- value\) and a mapping \(key: value\) are mixed"
    )
    with pytest.raises(ConfigError, match=message):
        load("name: tiny\nrecipe: table\nfeatures:\n  categorical:\n" + block + "  continuous: [x]\n")


@pytest.mark.parametrize("text", ["[1, 2]", "", "just words", "a: [", "\x00"])
def test_a_file_that_holds_no_settings_is_an_error(load, text):
    with pytest.raises(ConfigError, match=r"run\.yaml"):
        load(text)


def test_bytes_that_are_not_utf8_are_an_error(tmp_path):
    (tmp_path / "run.yaml").write_bytes(b"name: caf\xe9\nrecipe: flights\n")
    with pytest.raises(ConfigError, match="not valid YAML"):
        load_config(tmp_path / "run.yaml")


def test_folders_that_are_links_in_a_circle_are_read(tmp_path):
    """Whoever uses such a folder names it; here Python's own error was a traceback."""
    (tmp_path / "one").symlink_to("other")
    (tmp_path / "other").symlink_to("one")
    assert load_config(ROOT / "conf" / "flights.yaml", [f"artifacts={tmp_path / 'one'}"], whole=False)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.epochs=-1", r"train\.epochs: .*greater than or equal to 0 \(found -1\)"),
        ("train.optimizer=adm", r"train\.optimizer: .*'lamb', 'adamw' or 'cowclip' \(found 'adm'\)"),
        ("train.lr_max=.inf", r"train\.lr_max: .*finite"),
        ("device=gpu", r"device: .*found 'gpu'"),
        ("name=a/b", r"name: .*found 'a/b'"),
        *((f"name={name}", rf"name: .*found '{name[:190]}") for name in ("..", ".", ".hidden", "-x", "n" * 201)),
        ("runs=artifacts", "runs and artifacts are one folder, artifacts"),
        ("recipe=flight", r"unknown recipe 'flight'\. Known: flights"),
        ("features.split.train=0.9", r"fractions must be positive and sum to 1"),
        ("features.path=3", r"features\.path: .*\(found 3\)"),
        ("features=3", r"features: expected keys and values, found int"),
        ("train=3", r"train: .*\(found 3\)"),
        ("model.dropout=2", r"model: dropout must be a probability"),
        ("model.dropout=[0.1]", r"model: dropout must be one number, or one for each of the 2 layers"),
        ("model.layers=[0]", r"model: layers must be an integer from 1 up"),
        ("preprocess.indicator=never", r"preprocess\.indicator: unknown value 'never'\. Known: auto, all, none"),
        ("preprocess.min_count=many", r"preprocess\.min_count: .*found 'many'"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_found(load, override, message):
    with pytest.raises(ConfigError, match=message):
        load(SMALLEST, override)


def test_a_missing_key_is_named():
    with pytest.raises(ConfigError, match="key 'recipe' is missing"):
        parse_config({"name": "a"})


def test_several_mistakes_are_told_at_once(load):
    with pytest.raises(ConfigError, match=r"(?s)train\.epochs.*seed|seed.*train\.epochs"):
        load(SMALLEST, "train.epochs=-1", "seed=-1")


def test_a_configuration_is_frozen(load):
    with pytest.raises(ValidationError, match="frozen"):
        load(SMALLEST).seed = 3


def test_yaml_that_was_written_reads_back_the_same(load):
    config = load(SMALLEST, "train.lr_max=1e-5", "features.split.train=0.7", "features.split.valid=0.2")
    assert load(config.to_yaml()) == config


def test_a_mistake_is_told_before_anything_heavy_is_imported():
    """Seconds of imports stand between a user and the message otherwise."""
    mistakes = ["epochs=3", "train.epoch=3", "train.batch_size=1", "recipe=flight", "model.kind=dnc"]
    code = f"""
import sys
from gigabatch.pipeline.config.config import ConfigError, load_config
for mistake in {mistakes!r}:
    try:
        load_config("conf/flights.yaml", [mistake])
        sys.exit(mistake)
    except ConfigError:
        print(*sorted({{"torch", "pandas", "dask", "numba", "pyarrow", "scipy"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "\n" * len(mistakes))


def test_every_setting_says_what_it_is_in_the_docstring_of_its_section():
    sections = Settings.__subclasses__()
    assert {RunConfig, TrainSettings} < set(sections)
    for section in sections:
        for name, field in section.model_fields.items():
            assert field.description, f"{section.__name__}.{name}"
            assert f"\n{name} : " in section.__doc__


@pytest.mark.parametrize("seed", [2**63, 10**30])
def test_a_seed_beyond_64_bits_is_an_error_and_the_largest_below_is_taken(seed):
    """P23: torch's traceback, after the features and the encoding."""
    with pytest.raises(ConfigError, match=r"config: seed: .*less than 9223372036854775808"):
        parse_config({"name": "a", "recipe": "flights", "seed": seed})
    largest = parse_config({"name": "a", "recipe": "flights", "seed": 2**63 - 1}).seed
    torch.Generator().manual_seed(largest + 64)  # `compare` and `tune` count on from it
    assert start_state(largest + 64, 3) != start_state(largest, 3)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("[" * 3000 + "]" * 3000, "nested too deeply; 50 levels"),
        ("{b: " * 3000 + "1" + "}" * 3000, "nested too deeply; 50 levels"),
        ("[" * 60 + "]" * 60, "nested too deeply; 50 levels"),
        ("&x [*x]", "nested too deeply; 50 levels"),
        ("[&a [1,1,1,1,1,1,1,1,1,1], " + ", ".join(
            f"&{new} [{', '.join([f'*{old}'] * 10)}]" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
        ) + "]", "more than 1,000,000 values"),
    ],
)  # fmt: skip
def test_yaml_that_nests_or_repeats_without_end_is_one_line(load, value, words):
    """R11: a RecursionError's traceback."""
    with pytest.raises(ConfigError, match=words) as found:
        load(f"{SMALLEST}features: {value}\n")
    assert len(str(found.value)) < 300
    if "&" not in value:
        with pytest.raises(ConfigError, match=words):
            load(SMALLEST, f"features.path={value}")


@pytest.mark.parametrize(
    ("changes", "wrong", "found"),
    [
        ({"time": "at", "path": None, "train_path": "a", "test_path": "b"}, "time splits one path", "time='at'"),
        ({"targets": {}}, "targets is empty", "targets={}"),
        ({"continuous": 3}, "features.continuous", "3"),
    ],
)
def test_of_a_section_that_is_wrong_only_the_settings_that_are_meant_are_shown(changes, wrong, found):
    """H3: the message held the whole of `features`, thousands of characters of columns."""
    features = {
        "path": "shop.csv", "categorical": [f"category_{number}" for number in range(500)], "continuous": ["price"],
        "targets": {"sold": {"task": "binary"}},
    } | changes  # fmt: skip
    with pytest.raises(ConfigError) as error:
        parse_config({"name": "a", "recipe": "table", "features": features})
    message = str(error.value)
    assert wrong in message
    assert found in message.partition("(found ")[2]
    assert "category_1" not in message
    assert len(message) < 500


@pytest.mark.parametrize("number", [1, 100_000])
def test_a_long_value_is_shown_by_its_beginning(load, number):
    for override in (f"seed={'x' * number}", f"train.optimizer={'x' * number}", f"seed[{'x' * number}"):
        with pytest.raises(ConfigError) as error:
            load(SMALLEST, override)
        found = str(error.value)
        assert len(found) < 500
        assert ("..." in found) == (number > 1)


@pytest.mark.parametrize("kind", MODELS)
def test_unknown_settings_of_a_model_are_told_from_its_file_as_from_its_class(kind):
    settings = model_class(kind).Settings
    assert setting_names(kind) == tuple(field.name for field in fields(settings))
    given = {"layrs": 1, "embeding_dim": {"a": 2}, "epochs": 3}
    with pytest.raises(ConfigError) as of_class:
        checked_settings(settings, given, "model")
    with pytest.raises(ConfigError) as of_file:
        model_choice({"kind": kind, **given})
    assert str(of_file.value) == str(of_class.value)
