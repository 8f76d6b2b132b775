"""Code of users: what files, packages and cells register; what it recomputes; bundles, processes and errors of it.

The files are those that docs/own_code.md shows.
"""

import ast
import hashlib
import importlib
import json
import linecache
import os
import re
import shutil
import socket
import subprocess
import sys
import types
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file

from gigabatch import Bundle, ModelInputs, Preprocessor, own_code
from gigabatch.features.errors import DataError
from gigabatch.features.operators import operator_class, register_operator
from gigabatch.features.operators.base import ColumnOperator
from gigabatch.features.recipes import recipe_class, register_recipe
from gigabatch.features.recipes.base import FeatureTables
from gigabatch.features.schema import Column, Schema, Target
from gigabatch.models.errors import ModelError
from gigabatch.models.shelf import model_class, register_model
from gigabatch.pipeline.bundle import BundleError, load_bundle
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.config.config import ConfigError, RunConfig, load_config
from gigabatch.pipeline.stages.stages import Pipeline, write_features
from tests.models.parallel.together import PRELOADED
from tests.processes import Forked, python

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "own_code.md").read_text(encoding="utf-8")
SHOWN = {name: text for text, name in re.findall(r"```\w+\n(# (\S+)\n.*?)```", PAGE, re.S)}
OPERATOR = """
from gigabatch import register_operator
from gigabatch.features.operators.base import ColumnOperator
@register_operator("{name}")
class Own(ColumnOperator):
    reads, writes = ("column",), ("output",)
    def __init__(self, column: str, output: str) -> None:
        self.column, self.output = column, output
    def compute(self, frame):
        return {{self.output: frame[self.column] * {by}}}
"""


@pytest.fixture(autouse=True)
def _nothing_stays(monkeypatch):
    """What a test registers and imports is gone after it."""
    for registry in own_code.REGISTRIES.values():
        monkeypatch.setattr(registry, "kinds", dict(registry.kinds))
        monkeypatch.setattr(registry, "lost", dict(registry.lost))
    monkeypatch.setattr(own_code, "_TEXTS", dict(own_code._TEXTS))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith((own_code.PREFIX, "ours")):
            del sys.modules[name]


@pytest.fixture
def trips(tmp_path, monkeypatch):
    """A working folder with the files of docs/own_code.md, and the rows that they are about."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"city": rng.choice(["Oslo", "Bonn"], 300), "km": rng.uniform(1, 9, 300),
                         "hours": rng.uniform(1, 3, 300)})  # fmt: skip
    rows["late"] = (rows["km"] / rows["hours"] < 2).astype(int)
    rows.to_csv("trips.csv", index=False)
    assert list(SHOWN) == ["run.yaml", "my_steps.py", "my_model.py", "my_metric.py"]
    for name, text in SHOWN.items():
        Path(name).write_text(text)
    return tmp_path


def change(name):
    Path(name).write_text(Path(name).read_text() + "\nCHANGED = True\n")


def start(code, *flags, **environment):
    """A Python of its own in the working folder."""
    if not flags and not environment:
        return python(code)
    found = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | environment
    return subprocess.run(
        [sys.executable, *flags, "-c", code], env=found, capture_output=True, text=True, timeout=300, check=False
    )


def test_the_page_s_operator_and_model_run_and_are_as_small_as_said(trips):
    run = Pipeline.from_config("run.yaml").train()
    features = pd.concat(map(pd.read_parquet, Pipeline.from_config("run.yaml").features().parts("train")))
    raw = pd.read_csv("trips.csv")
    speed = (raw["km"] / raw["hours"]).astype("float32")
    np.testing.assert_array_equal(features["speed"], speed[features["row_number"]])
    weights = load_file(run.path / "model" / "weights.safetensors")
    assert weights["head.weight"].shape == (1, 8 + 2)  # a table of width 8; speed, and whether it was null
    # A prediction is what torch says of the same layers.
    bundle = run.bundle()
    rows = pd.DataFrame({"city": ["Oslo"], "speed": np.array([1.5], "float32")})
    words = torch.from_numpy(bundle.preprocessor.pack(rows, targets=False))
    vector = torch.cat([weights["tables.tables.0"][words[0, 0]], words[0, 1:].view(torch.float32)])
    logit = weights["head.weight"][0] @ vector + weights["head.bias"][0]
    found = bundle.model(words[:, :1], words[:, 1:].view(torch.float32))
    torch.testing.assert_close(found[0, 0], logit)
    measured: dict = {}
    exec(SHOWN["my_metric.py"], measured)
    labels = pd.concat(map(pd.read_parquet, Pipeline.from_config("run.yaml").features().parts("test")))["late"]
    flagged = [probability > 0.2 for probability in run.bundle().predict(measured["rows"])["late"]]
    costs = [5 if label and not flag else int(flag and not label) for flag, label in zip(flagged, labels, strict=True)]
    assert measured["cost"] == sum(costs) > 0
    code = {name: text.partition("@register")[2].count("\n") for name, text in SHOWN.items()}
    assert code["my_steps.py"] <= 10
    assert code["my_model.py"] <= 20


def test_a_changed_file_recomputes_the_stages_that_use_it_and_no_other(trips):
    def skipped():
        return Pipeline.from_config("run.yaml").train().skipped

    assert skipped() == ()
    assert skipped() == ("features", "encode", "train", "evaluate")
    change("my_model.py")
    assert skipped() == ("features", "encode")
    change("my_steps.py")
    assert "features" not in skipped()
    Path("other.py").write_text(OPERATOR.format(name="other", by=2))
    added = "imports=[my_steps.py, my_model.py, other.py]"
    assert Pipeline.from_config("run.yaml", added).train().skipped == ("features", "encode", "train", "evaluate")
    change("other.py")
    assert Pipeline.from_config("run.yaml", added).train().skipped == ("features", "encode", "train", "evaluate")
    change("my_steps.py")  # of which neither the steps nor the model use anything now
    plain = ("features.steps=[]", "features.continuous=[km]", "model={kind: lr}")
    first = Pipeline.from_config("run.yaml", *plain).train()
    change("my_steps.py")
    change("my_model.py")
    again = Pipeline.from_config("run.yaml", *plain).train()
    assert (first.skipped, again.skipped) == ((), ("features", "encode", "train", "evaluate"))


def test_keys_follow_modules_that_a_file_imports_within_functions_too(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in {
        "ours/__init__": "",
        "ours/far": "N = 1",
        "ours/near": "from .far import N",
        "ours/not": "",
    }.items():
        (tmp_path / "ours").mkdir(exist_ok=True)
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "steps.py").write_text(
        OPERATOR.format(name="own", by=2) + "\n    def late(self):\n        import ours.near, json, torch\n"
    )
    own_code.import_all([str(tmp_path / "steps.py")])
    kind = operator_class("own")
    files = {Path(path).name for path in own_code.sources(kind)}
    assert files == {"steps.py", "__init__.py", "near.py", "far.py"}
    before = own_code.code_hash(kind)
    (tmp_path / "ours" / "far.py").write_text("N = 2")
    assert own_code.code_hash(kind) == before  # what was run
    with pytest.raises(own_code.OwnCodeError, match=r"far\.py has changed since .* Start Python anew"):
        own_code.import_all([str(tmp_path / "steps.py")])
    own_code._TEXTS.clear()  # as in a Python that starts
    own_code._forget(kind.__module__)
    own_code.import_all([str(tmp_path / "steps.py")])
    assert own_code.code_hash(operator_class("own")) != before


def code_in_a_new_python():
    """The hash of `own` of steps.py as a Python that starts sees it."""
    code = "from gigabatch import own_code; own_code.import_all(['steps.py'])\n"
    code += "print(own_code.REGISTRIES['operator'].code('own'))"
    paths = os.pathsep.join([str(ROOT), os.getcwd()])
    done = start("import gigabatch.features.operators\n" + code, PYTHONPATH=paths)
    assert done.returncode == 0, done.stderr
    return done.stdout


def write(texts):
    for name, text in texts.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)


@pytest.mark.parametrize(
    ("imports", "before", "after"),
    [
        ("import ours.far", {"ours/far.py": "N = 1"}, {"ours/far.py": "N = 2"}),  # a package without __init__.py
        ("import ours.a.far", {"ours/__init__.py": "", "ours/a/far.py": "N = 1"}, {"ours/a/far.py": "N = 2"}),
        (
            "import ours.a.far",
            {"ours/__init__.py": "N = 1", "ours/a/__init__.py": "", "ours/a/far.py": ""},
            {"ours/__init__.py": "N = 2"},
        ),
        (
            "import ours.a.far",
            {"ours/__init__.py": "", "ours/a/__init__.py": "N = 1", "ours/a/far.py": ""},
            {"ours/a/__init__.py": "N = 2"},
        ),
        (
            "import ours.a.far, ours.b.far",
            {"ours/a/far.py": "N = 1", "ours/b/far.py": "N = 2"},
            {"ours/a/far.py": "N = 2", "ours/b/far.py": "N = 1"},
        ),
    ],
)
def test_keys_follow_packages_without_init_parents_and_which_module_holds_a_text(
    tmp_path, monkeypatch, imports, before, after
):
    monkeypatch.chdir(tmp_path)
    Path("steps.py").write_text(imports + OPERATOR.format(name="own", by=2))
    write(before)
    first = code_in_a_new_python()
    assert code_in_a_new_python() == first
    write(after)
    assert code_in_a_new_python() != first


def test_a_file_runs_without_the_future_statements_of_the_package(tmp_path):
    (tmp_path / "own.py").write_text("def f(x: int): ...\nassert f.__annotations__ == {'x': int}\n")
    own_code.import_all([str(tmp_path / "own.py")])


def test_a_hash_does_not_depend_on_where_the_file_lies(tmp_path):
    found = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "steps.py").write_text(OPERATOR.format(name="own", by=2))
        own_code.import_all([str(tmp_path / folder / "steps.py")])
        found.append(own_code.code_hash(operator_class("own")))
        own_code._forget(operator_class("own").__module__)
    assert found[0] == found[1]


def test_two_files_of_one_base_name_are_two_modules(tmp_path):
    for folder, by in (("a", 2), ("b", 3)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "torch.py").write_text(OPERATOR.format(name=f"of_{folder}", by=by))
    (tmp_path / "run.yaml").write_text("name: x\nrecipe: flights\nimports: [a/torch.py, b/torch.py]\n")
    config = load_config(tmp_path / "run.yaml")
    assert config.imports == (str(tmp_path / "a/torch.py"), str(tmp_path / "b/torch.py"))
    frame = pd.DataFrame({"x": [1.0]})
    values = [operator_class(f"of_{name}")("x", "y")(frame)["y"].item() for name in "ab"]
    assert values == [2.0, 3.0]
    assert sys.modules["torch"] is torch
    (tmp_path / "b" / "torch.py").write_text(OPERATOR.format(name="of_a", by=3))
    with pytest.raises(
        ConfigError, match=r"b/torch\.py, line 4: .*register_operator 'of_a': .*a/torch\.py:Own has thi"
    ):
        load_config(tmp_path / "run.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ny = x / 0\n", r"my\.py cannot be imported: \S+my\.py, line 2: ZeroDivisionError: division by zero"),
        ("def f(:\n", r"my\.py, line 1: SyntaxError"),
        ("import no_such_package\n", r"my\.py, line 1: ModuleNotFoundError: No module named 'no_such_package'"),
        ("import json\njson.loads('[')\n", r"my\.py, line 2: json.decoder.JSONDecodeError"),
        ("raise SystemExit(3)\n", r"my\.py, line 1: SystemExit: 3"),
        (OPERATOR.format(name="log", by=1), r"line 4: .*register_operator 'log': gigabatch has an operator of this na"),
        (OPERATOR.format(name="Own", by=1), "a name is lower-case letters"),
        (OPERATOR.format(name="own", by=1).replace("compute", "computed"), "lacks compute"),
        ("import gigabatch\n@gigabatch.register_operator('f')\ndef f(): ...\n", "expected a class"),
        ("import gigabatch\ngigabatch.register_operator('f')(int)\n", "int is no operator. Derive"),
        ("import gigabatch\ngigabatch.register_recipe('f')(int)\n", "int is no recipe. Derive"),
        ("import gigabatch\nclass M(gigabatch.Model): ...\ngigabatch.register_model('f')(M)\n", "no `Settings`"),
        (
            "from gigabatch.pipeline.config.config import load_config\nload_config('run.yaml')\n",
            r"my\.py, line 2: .*ConfigError: .*is being imported already, and asks for itself",
        ),
    ],
)
def test_a_broken_file_is_named_with_its_line_and_what_it_raised(tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    Path("my.py").write_text(text)
    Path("run.yaml").write_text("name: x\nrecipe: flights\nimports: [my.py]\n")
    for _ in range(2):
        with pytest.raises(ConfigError, match=message):
            load_config("run.yaml")
    Path("my.py").write_text(OPERATOR.format(name="own", by=1))
    load_config("run.yaml")
    assert operator_class("own")


@pytest.mark.parametrize(
    ("imports", "message"),
    [
        ("my.py", "expected a list of files"),
        ("[3]", "expected a list of files"),
        ("[my.py]", r"my\.py cannot be read \(No such file or directory\). Files there: beside.py"),
        ("[no_such.module]", r"there is no module 'no_such.module' .*ends in \.py"),
    ],
)
def test_imports_that_are_not_there_are_named(tmp_path, imports, message):
    (tmp_path / "beside.py").touch()
    (tmp_path / "run.yaml").write_text(f"name: x\nrecipe: flights\nimports: {imports}\n")
    with pytest.raises(ConfigError, match=message):
        load_config(tmp_path / "run.yaml")


def test_a_class_has_one_name_and_a_name_one_class():
    @register_operator("first")
    class Own(ColumnOperator):
        def compute(self, frame):
            return {}

    with pytest.raises(DataError, match="registered as 'first' already"):
        register_operator("second")(Own)
    with pytest.raises(DataError, match="has this name"):
        register_operator("first")(type("Other", (Own,), {}))
    with pytest.raises(ModelError, match="gigabatch has a model of this name"):
        register_model("lr")(Own)
    with pytest.raises(DataError, match="gigabatch has a recipe of this name"):
        register_recipe("table")(Own)


def test_a_host_that_runs_text_of_no_module_does_not_count_as_where_a_class_was_registered():
    class Own(ColumnOperator):
        def compute(self, frame):
            return {}

    exec("register(Own)", {"__name__": "__host__", "register": register_operator("hosted"), "Own": Own})
    assert own_code.REGISTRIES["operator"].kinds["hosted"] is Own


RECIPE = """
from dataclasses import dataclass
import pandas as pd
from gigabatch import register_recipe
from gigabatch.features.recipes.base import FeatureTables, Recipe
from gigabatch.features.schema import Column, Schema, Target
@dataclass(frozen=True)
class CoinsSettings:
    rows: int = 50
@register_recipe("coins")
class Coins(Recipe):
    Settings = CoinsSettings
    def inputs(self):
        return []
    def build(self, engine):
        frame = pd.DataFrame({"side": ["heads", "tails"] * self.settings.rows, "won": [1.0, 0.0] * self.settings.rows})
        columns = (Column("side", "categorical", "string"), Column("won", "target", "float32"))
        splits = dict.fromkeys(("train", "valid", "test"), frame)
        return FeatureTables(splits, Schema(columns, (Target("won", "binary"),)))
"""


def test_a_recipe_of_a_file_makes_features_whose_key_follows_its_source(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("coins.py").write_text(RECIPE)

    def made(**features):
        return Pipeline(RunConfig(name="c", recipe="coins", imports=["coins.py"], features=features)).features()

    first = made(rows=7)
    assert first.rows == {"train": 14, "valid": 14, "test": 14}
    assert made(rows=7).artifact.skipped
    change("coins.py")
    assert made(rows=7).artifact.key != first.artifact.key
    with pytest.raises(ValueError, match=r"features\.row"):
        made(row=7)


COIN_SCHEMA = Schema(
    (Column("side", "categorical", "string"), Column("won", "target", "float32")), (Target("won", "binary"),)
)


def coins(**splits):
    """What a recipe gives, with splits of its own."""
    frame = pd.DataFrame({"side": ["heads", "tails"], "won": [1.0, 0.0]})
    return FeatureTables(dict.fromkeys(("train", "valid", "test"), frame) | splits, COIN_SCHEMA)


@pytest.mark.parametrize(
    ("splits", "said"),
    [
        ({"test": pd.DataFrame({"side": ["heads"]})}, r"split 'test': column\(s\) 'won' not found.*there: 'side'"),
        (
            {"valid": pd.DataFrame([["heads", 1.0, 0.0]], columns=["side", "won", "won"])},
            r"split 'valid': column\(s\) 'won' are there more than once",
        ),
        ({"test": [1, 2]}, r"split 'test': .*list"),
        ({"../later": pd.DataFrame({"side": ["heads"], "won": [1.0]})}, r"split '../later' is no name of a folder"),
        ({"a/b": pd.DataFrame({"side": ["heads"], "won": [1.0]})}, r"split 'a/b' is no name of a folder"),
        ({"": pd.DataFrame({"side": ["heads"], "won": [1.0]})}, r"split '' is no name of a folder"),
        ({3: pd.DataFrame({"side": ["heads"], "won": [1.0]})}, r"split 3 is no name of a folder"),
        ({"workflow": pd.DataFrame({"side": ["heads"], "won": [1.0]})}, r"split 'workflow' is no name of a folder"),
    ],
)
def test_splits_that_are_none_are_named(splits, said):
    with pytest.raises(DataError, match=said):
        FeatureTables(coins().splits | splits, COIN_SCHEMA)


def test_splits_of_another_library_are_those_of_pandas(tmp_path):
    frame = pd.DataFrame({"more": [1, 2], "side": pd.Categorical(["tails", None]), "won": [1.0, 0.0]})
    tables = coins(valid=pa.Table.from_pandas(frame), test=frame)
    assert write_features(tables, tmp_path, 100) == {"train": 2, "valid": 2, "test": 2}
    valid, test = (pd.read_parquet(tmp_path / split) for split in ("valid", "test"))
    pd.testing.assert_frame_equal(valid, test)
    assert valid["side"].isna().tolist() == [False, True]


def installed(folder, name, module, group, entry):
    """What pip leaves of a package with one entry point."""
    (folder / f"{name}-1.0.dist-info").mkdir()
    (folder / f"{name}-1.0.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (folder / f"{name}-1.0.dist-info" / "entry_points.txt").write_text(f"[gigabatch.{group}]\n{entry}\n")
    (folder / f"{name}.py").write_text(module)


def test_entry_points_are_loaded_when_a_name_is_unknown_and_not_before(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    undecorated = OPERATOR.format(name="own", by=5).replace('@register_operator("own")', "")
    installed(tmp_path, "ours_steps", undecorated, "operators", "five = ours_steps:Own")
    installed(tmp_path, "ours_coins", RECIPE, "recipes", "coins = ours_coins:Coins")
    installed(tmp_path, "ours_models", SHOWN["my_model.py"], "models", "wide_sum = ours_models:WideSum")
    names = {"ours_steps", "ours_coins", "ours_models"}
    operator_class("log"), recipe_class("table"), model_class("lr")
    with pytest.raises(DataError, match=r"unknown operator 'fiv'. Did you mean 'five'"):
        operator_class("fiv")
    with pytest.raises(DataError, match=r"unknown recipe 'coin'.*coins, flights"):
        recipe_class("coin")
    with pytest.raises(ModelError, match=r"unknown model 'wide_su'.*wide_sum"):
        model_class("wide_su")
    assert not names & sys.modules.keys()
    assert operator_class("five")("x", "y")(pd.DataFrame({"x": [2.0]}))["y"].item() == 10
    assert recipe_class("coins").__module__ == "ours_coins"
    assert model_class("wide_sum").__module__ == "ours_models"
    assert own_code.REGISTRIES["model"].code("wide_sum")


def test_an_entry_point_that_cannot_be_loaded_or_stands_twice_is_named(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    installed(tmp_path, "ours_broken", "1 / 0", "operators", "broken = ours_broken:Own")
    installed(tmp_path, "ours_one", "", "operators", "twice = ours_one:Own")
    installed(tmp_path, "ours_two", "", "operators", "twice = ours_two:Own")
    with pytest.raises(DataError, match=r"ours_broken:Own of ours_broken cannot .*ours_broken\.py, line 1: ZeroDiv"):
        operator_class("broken")
    with pytest.raises(DataError, match=r"ours_one \(ours_one:Own\), ours_two \(ours_two:Own\)"):
        operator_class("twice")


@pytest.mark.parametrize(
    ("left", "said"),
    [
        ("broken", r"model 'five_sum': the entry point ours_sums:WideSum of ours_sums cannot .*ZeroDivisionError"),
        ("twice", r"model 'five_sum': several installed packages .* ours_one .*The bundle has that of ours_sums\."),
        ("gone", r"model 'five_sum' of ours_sums: imports: there is no module 'ours_sums' "),
    ],
)
def test_a_bundle_whose_package_is_not_what_it_was_is_not_called_damaged(tmp_path, monkeypatch, left, said):
    monkeypatch.syspath_prepend(tmp_path)
    module = SHOWN["my_model.py"].replace('@register_model("wide_sum")', "")
    installed(tmp_path, "ours_sums", module, "models", "five_sum = ours_sums:WideSum")
    kind = model_class("five_sum")
    preprocessor = Preprocessor(COIN_SCHEMA).fit([coins().splits["train"]])
    ids = tuple(column.num_ids for column in preprocessor.tensor_schema.ids)
    inputs = ModelInputs(num_ids=ids, num_floats=len(preprocessor.tensor_schema.floats))
    Bundle(preprocessor, kind(inputs, kind.Settings()), {}).save(tmp_path / "model")
    load_bundle(tmp_path / "model")
    own_code._forget("ours_sums")  # as in a Python that starts
    if left == "broken":
        (tmp_path / "ours_sums.py").write_text("1 / 0")
    elif left == "twice":
        installed(tmp_path, "ours_one", "", "models", "five_sum = ours_one:WideSum")
    else:
        (tmp_path / "ours_sums.py").unlink()
        shutil.rmtree(tmp_path / "ours_sums-1.0.dist-info")
    importlib.invalidate_caches()
    with pytest.raises(BundleError, match=said) as raised:
        load_bundle(tmp_path / "model")
    assert "damaged" not in str(raised.value)


LOAD = """
import sys, pandas as pd
from gigabatch import load_bundle
from gigabatch.pipeline.bundle import BundleError
try:
    bundle = load_bundle(sys.argv[1] if len(sys.argv) > 1 else "model")
    print(bundle.predict_raw(pd.read_csv("trips.csv").head(3))["late"].tolist())
except BundleError as error:
    print(error)
"""


def test_a_bundle_is_loaded_in_another_process_until_its_file_is_gone_or_changed(trips):
    run = Pipeline.from_config("run.yaml").train()
    expected = run.bundle().predict_raw(pd.read_csv("trips.csv").head(3))["late"].tolist()
    (run.path / "model").rename("model")
    done = start(LOAD)
    assert json.loads(done.stdout) == pytest.approx(expected, rel=1e-5), done.stderr
    for name, what in (("my_model.py", "model 'wide_sum'"), ("my_steps.py", "operator 'ratio'")):
        text = Path(name).read_text()
        change(name)
        assert re.search(f"bundle model: {what} of .*{name} has changed. Put it back", start(LOAD).stdout)
        Path(name).unlink()
        assert re.search(f"bundle model: {what} of .*{name} is gone. Put it back, or name", start(LOAD).stdout)
        Path(name).write_text(text)
    Path("elsewhere").mkdir()
    Path("my_model.py").rename("elsewhere/my_model.py")
    moved = "from gigabatch import own_code; own_code.import_all(['elsewhere/my_model.py'])\n"
    assert json.loads(start(moved + LOAD).stdout) == pytest.approx(expected, rel=1e-5)
    change("elsewhere/my_model.py")
    assert "elsewhere/my_model.py:WideSum has changed" in start(moved + LOAD).stdout


def test_a_service_takes_a_bundle_of_a_file_that_has_changed_since_it_started(trips):
    first = Pipeline.from_config("run.yaml").train().path
    load_bundle(first / "model")
    change("my_model.py")
    done = start("from gigabatch import Pipeline; print(Pipeline.from_config('run.yaml').train().path)")
    second = done.stdout.strip().splitlines()[-1]
    assert load_bundle(Path(second) / "model").info["name"] == "trips"
    with pytest.raises(BundleError, match=r"my_model\.py has changed"):
        load_bundle(first / "model")


def test_the_command_line_trains_scores_and_evaluates(trips, capsys):
    for command in (["train"], ["score", "--out", "scores.parquet"], ["evaluate"]):
        assert main([command[0], "--config", "run.yaml", *command[1:]]) == 0, capsys.readouterr().err
    Path("my_model.py").unlink()
    assert main(["evaluate", "--config", "run.yaml"]) == 2
    assert "my_model.py cannot be read" in capsys.readouterr().err


def test_ranks_import_too(trips):
    """Two processes in what torchrun sets; torchrun itself: test_torchrun.py."""
    code = "import sys; from gigabatch.pipeline.commands.app import main; sys.exit(main(sys.argv[1:]))"
    with socket.create_server(("127.0.0.1", 0)) as found:
        told = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(found.getsockname()[1])}
    told |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    given = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    ranks = [
        Forked(code, "train", "--config", "run.yaml", env=os.environ | told | {"RANK": rank}, **given) for rank in "01"
    ]
    for rank in ranks:
        error = rank.communicate(timeout=300)[1]
        assert rank.returncode == 0, error
    assert load_bundle("runs/trips/current/model").info["name"] == "trips"


@pytest.fixture
def workers_of_one_import():
    """Workers that this process starts are forks of one that has imported the package, which takes seconds."""
    import dask
    from distributed.utils import get_mp_context

    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        get_mp_context().set_forkserver_preload([*PRELOADED, "distributed", "gigabatch.pipeline.stages.stages"])
        yield


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_workers_of_a_cluster_import_too_and_give_the_same_features(trips, workers_of_one_import):
    here = Pipeline.from_config("run.yaml").features().encode()
    settings = ("cluster=local", "artifacts=other", "cluster_settings={workers: 1, threads_per_worker: 1}")
    there = Pipeline.from_config("run.yaml", *settings).features().encode()
    assert there.key == here.key
    assert torch.equal(there.table("train").words, here.table("train").words)
    with Pipeline.from_config("run.yaml", *settings).cluster(trips) as cluster:
        assert cluster.map(_knows, ["ratio"]) == [True]


def _knows(name):
    return name in own_code.REGISTRIES["operator"].kinds


def cells(monkeypatch, *texts):
    """Run texts as a notebook's kernel runs cells: in `__main__`, which has no file, each known to `linecache`."""
    space = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", space)
    for text in texts:
        name = f"/tmp/ipykernel_1/{len(linecache.cache)}-{id(text)}.py"
        monkeypatch.setitem(linecache.cache, name, (len(text), None, text.splitlines(True), name))
        exec(compile(text, name, "exec"), vars(space))


def test_a_class_of_a_cell_registers_and_counts_by_what_it_uses(monkeypatch):
    own = OPERATOR.format(name="own", by="times()")

    def code(*texts):
        cells(monkeypatch, *texts)
        return own_code.REGISTRIES["operator"].code("own")

    base = code("FACTOR = 2\nOTHER = 1", "def times():\n    return FACTOR", own)
    assert operator_class("own")("x", "y")(pd.DataFrame({"x": [2.0]}))["y"].item() == 4
    assert code("FACTOR = 2\nOTHER = 9", "def times():\n    return FACTOR", own) == base
    assert code("FACTOR = 3\nOTHER = 1", "def times():\n    return FACTOR", own) != base
    assert code("FACTOR = 2\nOTHER = 1", "def times():\n    return 2 + FACTOR", own) != base
    assert code("FACTOR = 2\nOTHER = 1", "def times():\n    return FACTOR", own.replace(" * ", " + ")) != base


def test_a_class_of_a_module_without_a_file_is_refused_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "ours_unwritten", types.ModuleType("ours_unwritten"))
    with pytest.raises(DataError, match=r"ours_unwritten of Own has no file.*Write the class to a file"):
        exec(OPERATOR.format(name="own", by=2), vars(sys.modules["ours_unwritten"]))


def test_a_cell_s_class_that_uses_what_cannot_be_told_is_refused_by_name(monkeypatch):
    cells(monkeypatch, "import threading\nLOCK = threading.Lock()", OPERATOR.format(name="own", by="LOCK"))
    with pytest.raises(DataError, match=r"__main__:Own: the function uses <unlocked.* content cannot be told"):
        own_code.REGISTRIES["operator"].code("own")


USE = "import functools\nimport numpy as np\n" + OPERATOR.format(name="own", by="k()")


@pytest.mark.parametrize(
    "texts",
    [
        ["BY = {}\ndef k(): return BY"],
        ["@functools.cache\ndef k(): return {}"],
        ["k = functools.partial(int, '{}')"],
        ["def make(x):\n    def k(): return x\n    return k", "k = make({})"],
        ["V = {}", "def k(x=V): return x"],
        ["A = np.array([{}])", "def k(): return A[0]"],
        ["class C:\n    def __init__(self, v): self.v = v", "c = C({})", "def k(): return c.v"],
        ["def k(): return 1", "class Base(Own):\n    K = 1", "from gigabatch import register_operator as r\n"
         "@r('sub')\nclass Sub(Base):\n    K = {}"],
        ["from dataclasses import dataclass, field\n@dataclass\nclass D:\n    v: int = {}\n"
         "    w: list = field(default_factory=list)\ndef k(): return D().v"],
    ],
)  # fmt: skip
def test_a_cell_s_class_counts_by_whatever_its_functions_use(monkeypatch, texts):
    def code(value):
        cells(monkeypatch, USE, *(text.replace("{}", str(value)) for text in texts))
        return own_code.REGISTRIES["operator"].code("sub" if "@r('sub')" in texts[-1] else "own")

    first = code(2)
    assert code(2) == first
    assert code(3) != first


def test_a_cell_s_class_counts_by_functions_of_a_module_and_the_same_in_each_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = "from ours import k\nS = {'a', 'b', 'c', 'd', 'e'}\n" + OPERATOR.format(name="own", by="k(S)")
    script += "\nfrom gigabatch import own_code\nprint(own_code.REGISTRIES['operator'].code('own'))"
    paths = os.pathsep.join([str(ROOT), os.getcwd()])

    def code(by, seed):
        write({"ours.py": f"def k(s): return {by}"})
        done = start(script, "-B", PYTHONPATH=paths, PYTHONHASHSEED=seed)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert code("len(s)", "1") == code("len(s)", "2") != code("len(s) + 1000", "1")


FACTORY = OPERATOR.format(name="own", by="by").replace('@register_operator("own")', "")
FACTORY = "\n".join(["def make(by):", *(f"    {line}" for line in FACTORY.splitlines()), "    return Own"])
REGISTERS = "from gigabatch import register_operator\nfrom ours import make\nregister_operator('own')(make(2))\n"


def test_the_file_that_registers_a_class_of_a_module_counts_and_is_what_a_bundle_imports(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    write({"ours.py": FACTORY, "steps.py": REGISTERS})
    own_code.import_all(["steps.py"])
    entry = own_code.told("operator", "own")
    assert entry["import"] == str(tmp_path / "steps.py")
    assert {Path(path).name for path in entry["files"]} == {"ours.py", "steps.py"}
    write({"steps.py": REGISTERS.replace("(2)", "(3)")})
    own_code.import_all(["steps.py"])
    assert own_code.REGISTRIES["operator"].code("own") != entry["hash"]
    write({"other.py": REGISTERS})
    with pytest.raises(own_code.OwnCodeError, match=r"steps\.py has registered one. Choose another name"):
        own_code.import_all(["other.py"])
    own_code._forget(own_code._module_name(entry["import"]))  # as in a Python that starts
    write({"steps.py": REGISTERS})
    own_code.require_told([entry])
    assert operator_class("own")("x", "y")(pd.DataFrame({"x": [2.0]}))["y"].item() == 4


def test_a_base_of_another_file_counts_and_its_change_runs_the_files_after_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    derived = "from gigabatch.features.operators import operator_class, register_operator\n"
    derived += "@register_operator('own')\nclass Sub(operator_class('base')): ...\n"
    found = []
    for by in (2, 3):
        write({"base.py": OPERATOR.format(name="base", by=by), "steps.py": derived})
        own_code.import_all(["base.py", "steps.py"])
        value = operator_class("own")("x", "y")(pd.DataFrame({"x": [2.0]}))["y"].item()
        found.append((value, own_code.REGISTRIES["operator"].code("own")))
    assert [value for value, _ in found] == [4, 6]
    assert found[0][1] != found[1][1]
    kind = operator_class("own")
    own_code.import_all(["base.py", "steps.py"])
    assert operator_class("own") is kind  # nothing has changed


MORE = "from gigabatch.own_code import REGISTRIES\nfrom gigabatch import register_operator\n"
MORE += "@register_operator('mul_more')\nclass Sub(REGISTRIES['operator'].find('mul')): ...\n"


def _of(step, *imports):
    """A pipeline of one step, whose feature is y."""
    features = {"path": "rows.csv", "inputs": {"x": "float64"}, "continuous": ["y"]}
    features |= {"targets": {"label": {"task": "binary"}}, "steps": [{step: {"column": "x", "output": "y"}}]}
    return Pipeline.from_config({"name": "own", "recipe": "table", "features": features, "imports": list(imports)})


def _values(features):
    return [value for split in ("train", "valid", "test") for value in features.frame(split)["y"]]


@pytest.fixture
def two_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pd.DataFrame({"x": np.arange(1.0, 41), "label": np.arange(40) % 2}).to_csv("rows.csv", index=False)
    write({"a.py": OPERATOR.format(name="mul", by=2), "b.py": MORE})


def test_a_base_that_changed_under_another_configuration_is_not_kept_by_what_derives_from_it(two_files):
    first = _of("mul_more", "a.py", "b.py")
    assert max(_values(first.features())) == 80
    write({"a.py": OPERATOR.format(name="mul", by=3)})
    assert max(_values(_of("mul", "a.py").features())) == 120
    with pytest.raises(DataError, match=r"operator 'mul_more': .*a\.py, of which .* Load .* imports .*b\.py again"):
        first.features()  # its class is still the old one's
    assert max(_values(_of("mul_more", "a.py", "b.py").features())) == 120
    assert max(_values(first.features())) == 120


def test_a_file_runs_again_after_one_before_it_that_ran_again_under_another_list(two_files):
    write({"b.py": "from gigabatch.own_code import REGISTRIES\nTAKEN = REGISTRIES['operator'].find('mul')\n"})
    lists = (["a.py", "b.py"], ["a.py"], ["a.py", "b.py"])
    for by, imports in zip((2, 3, 3), lists, strict=True):
        write({"a.py": OPERATOR.format(name="mul", by=by)})
        own_code.import_all(imports)
    module = sys.modules[own_code._module_name(os.path.abspath("b.py"))]
    assert module.TAKEN is operator_class("mul")
    own_code.import_all(["a.py", "b.py"])
    assert sys.modules[module.__name__] is module  # nothing has changed


def test_what_a_failed_file_had_registered_is_told_with_its_failure(two_files):
    first = _of("mul", "a.py")
    write({"a.py": OPERATOR.format(name="mul", by=2) + "\n1 / 0"})
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        _of("mul", "a.py")
    with pytest.raises(DataError, match=r"operator 'mul': .*a\.py cannot be imported: .*ZeroDivisionError.* Mend it"):
        first.features()
    write({"a.py": OPERATOR.format(name="mul", by=2)})
    assert max(_values(_of("mul", "a.py").features())) == 80
    write({"a.py": ""})
    own_code.import_all(["a.py"])
    with pytest.raises(DataError, match="unknown operator"):
        first.features()


def test_a_bundle_of_a_cell_s_model_says_elsewhere_that_the_cell_is_to_be_run(trips, monkeypatch):
    cells(monkeypatch, SHOWN["my_model.py"])
    run = Pipeline.from_config("run.yaml", "imports=[my_steps.py]").train()
    assert load_bundle(run.path / "model").info["name"] == "trips"
    (run.path / "model").rename("model")
    assert "'wide_sum' was registered in a notebook or a script. Run its cell first" in start(LOAD).stdout


FUNCTION = """
from gigabatch import register_function

def scaled(frame):
    return frame.assign(speed=frame["km"] * {by})[["speed"]]

register_function("scaled", scaled, inputs=["km"], outputs=["speed"])
"""


@pytest.fixture
def scaling(trips):
    """The page's run with a function in place of its operator."""
    Path("my_steps.py").write_text(FUNCTION.format(by=2))
    text = Path("run.yaml").read_text()
    step = re.search(r"    - ratio: .*\n", text).group()
    text = text.replace(step, "    - lambda_function: {name: scaled}\n").replace(
        "{km: float64, hours: float64}", "{km: float64}"
    )
    Path("run.yaml").write_text(text)


def test_a_function_of_a_changed_file_takes_the_place_of_the_earlier_one(scaling):
    first = Pipeline.from_config("run.yaml").features()
    Path("my_steps.py").write_text(FUNCTION.format(by=3))
    second = Pipeline.from_config("run.yaml").features()
    assert second.artifact.key != first.artifact.key
    before, after = (one.frame("train", ["speed"])["speed"] for one in (first, second))
    assert np.allclose(after, before * 1.5)
    assert Pipeline.from_config("run.yaml").features().artifact.key == second.artifact.key
    Path("other.py").write_text(FUNCTION.format(by=4))
    with pytest.raises(
        ConfigError, match=r"other\.py, line 7.*register_function 'scaled': another function has this name"
    ):
        load_config("run.yaml", [{"imports": ["my_steps.py", "my_model.py", "other.py"]}])


def test_a_bundle_with_a_function_is_loaded_in_another_process_until_its_file_is_gone_or_changed(scaling):
    run = Pipeline.from_config("run.yaml").train()
    expected = run.bundle().predict_raw(pd.read_csv("trips.csv").head(3))["late"].tolist()
    (run.path / "model").rename("model")
    done = start(LOAD)
    assert json.loads(done.stdout) == pytest.approx(expected, rel=1e-5), done.stderr
    text = Path("my_steps.py").read_text()
    change("my_steps.py")
    assert re.search("bundle model: function 'scaled' of .*my_steps.py has changed. Put it back", start(LOAD).stdout)
    Path("my_steps.py").unlink()
    assert re.search("bundle model: function 'scaled' of .*my_steps.py is gone. Put it back, or", start(LOAD).stdout)
    Path("my_steps.py").write_text(text)


def test_a_comment_changes_nothing_and_a_bundle_that_is_refused_is_trained_again(scaling):
    load_bundle(Pipeline.from_config("run.yaml").train().path / "model")
    train = "from gigabatch import Pipeline; print(Pipeline.from_config('run.yaml').train().path)"

    def path():
        return start(train).stdout.strip().splitlines()[-1]

    first = path()
    for name in ("my_steps.py", "my_model.py"):
        text = Path(name).read_text()
        assert "(frame" in text or "(inputs.num_ids" in text
        text = text.replace("(frame", "(  # how\n    frame").replace("(inputs.num_ids", "(\n    inputs.num_ids")
        Path(name).write_text(f"# why\n\n{text}\n\n")
    assert path() == first
    done = start(LOAD.replace('"model"', f'"{first}/model"'))
    assert len(json.loads(done.stdout)) == 3
    change("my_steps.py")  # which the bytecode of the function does not tell
    said = start(LOAD.replace('"model"', f'"{first}/model"')).stdout
    assert "has changed. Put it back as it was, or train again." in said
    second = path()
    assert second != first
    assert len(json.loads(start(LOAD.replace('"model"', f'"{second}/model"')).stdout)) == 3


def test_bundles_of_earlier_versions_kept_hashes_of_the_text_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write({"steps.py": OPERATOR.format(name="own", by=2)})
    own_code.import_all(["steps.py"])
    entry, text = own_code.told("operator", "own"), Path("steps.py").read_bytes()
    digest = hashlib.blake2b(b"steps.py\0%d\0" % len(text) + text, digest_size=16).hexdigest()
    assert entry["hash"] != digest
    own_code._forget(own_code._module_name(entry["import"]))
    own_code.require_told([entry | {"hash": digest, "files": dict.fromkeys(entry["files"], digest)}])
    with pytest.raises(own_code.OwnCodeError, match="has changed"):
        own_code.require_told([entry | {"hash": digest[::-1]}])


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        ("a = f('x', [1])  # why", 'a = f(\n    "x",\n    [1],\n)', True),
        ("if a:\n  b = (1)", "if a:\n        b = 1\n\n", True),
        ("a = u'x'", "a = 'x'", True),
        ("a = 1", "a = 1.0", False),
        ("a = '# x'", "a = '#  x'", False),
        ("return_ = None", "return_ = 0", False),
        ("a - (b - c)", "(a - b) - c", False),
        ("if a:\n  b\n  c", "if a:\n  b\nc", False),
        ("no source = ", "no  source = ", False),
        ("+".join("a" * 900), " + ".join("a" * 900), True),
        ("f(a, [b], c)", "f(a, [b, c])", False),
        ("x = [a], b", "x = [a, b]", False),
        ("+".join("a" * 9000), " + ".join("a" * 9000), None),
    ],
)
def test_what_a_source_says_is_what_its_tree_says(left, right, equal):
    found = own_code.code_in(left.encode()) == own_code.code_in(right.encode())
    assert equal is None or found == equal


@pytest.mark.parametrize("terms", [100, 450, 900, 1500, 3000])
def test_a_source_says_the_same_however_deep_the_stack_is_of_who_asks(terms):
    text = "+".join("a" * terms).encode()

    def found(depth):
        own_code._read.cache_clear()
        return own_code.code_in(text) if depth == 0 else deeper(depth)

    def deeper(depth):
        return own_code.code_in(text) if depth == 0 else deeper(depth - 1)

    assert found(0) == found(300) == found(700)


@pytest.fixture
def parsed(monkeypatch):
    """The texts that are parsed, and how often."""
    own_code._read.cache_clear()
    found, parse = Counter(), ast.parse
    monkeypatch.setattr(
        ast, "parse", lambda text, *rest, **named: (found.update([text]), parse(text, *rest, **named))[1]
    )
    return found


def test_a_file_of_many_functions_is_parsed_once(tmp_path, parsed):
    text = "from gigabatch import register_function\n" + "".join(
        f"def f{k}(frame): return frame * {k}\nregister_function('f{k}', f{k}, inputs=['a'], outputs=['b{k}'])\n"
        for k in range(20)
    )
    (tmp_path / "many.py").write_text(text)
    own_code.import_all([str(tmp_path / "many.py")])
    codes = {operator_class("lambda_function").code_of({"name": f"f{k}"}) for k in range(20)}
    assert (len(codes), parsed[text.encode()]) == (20, 1)


def test_modules_of_a_large_package_are_parsed_once(tmp_path, monkeypatch, parsed):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "ours").mkdir()
    texts = ["from ours import " + ", ".join(f"m{k}" for k in range(1, 100)), *(f"K = {k}\n" for k in range(1, 100))]
    for k, text in enumerate(texts):
        (tmp_path / "ours" / f"m{k}.py").write_text(text)
    (tmp_path / "steps.py").write_text("import ours.m0\n" + OPERATOR.format(name="own", by=2))
    own_code.import_all([str(tmp_path / "steps.py")])
    for _ in range(3):
        own_code.code_hash(operator_class("own"))
    assert [parsed[text.encode()] for text in texts] == [1] * 100


def test_a_workflow_whose_function_was_not_imported_is_not_called_damaged(scaling, monkeypatch):
    from gigabatch.features.workflow.workflow import Workflow

    features = Pipeline.from_config("run.yaml").features()
    features.workflow.save("workflow")
    monkeypatch.setattr(own_code.REGISTRIES["function"], "kinds", {})
    with pytest.raises(
        DataError, match=r"^workflow workflow: step 1 \(lambda_function\): LambdaFunction 'scaled': no"
    ) as found:
        Workflow.load("workflow")
    assert "imports" in str(found.value)
    assert "damaged" not in str(found.value)


def test_of_a_function_of_a_script_a_bundle_keeps_the_name_alone(scaling):
    """Another script may register the same function: its own text is no part of that."""
    script = (
        "from gigabatch import Pipeline\nrun = Pipeline.from_config('run.yaml', {'imports': ['my_model.py']}).train()\n"
    )
    text = Path("my_steps.py").read_text()
    Path("train.py").write_text(text + script + "print(run.path)")
    Path("serve.py").write_text(text + "import sys\n" + LOAD)
    done = start("import runpy; runpy.run_path('train.py', run_name='__main__')")
    path = done.stdout.strip().splitlines()[-1]
    served = start(
        f"import runpy, sys; sys.argv.append('{path}/model'); runpy.run_path('serve.py', run_name='__main__')"
    )
    assert len(json.loads(served.stdout)) == 3, served.stderr
    without = start(f"import sys; sys.argv.append('{path}/model')\n{LOAD}")
    assert re.search("bundle .*: workflow .*LambdaFunction 'scaled': no function of this name is regis", without.stdout)
