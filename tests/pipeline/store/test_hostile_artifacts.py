"""Saved states that are damaged or malicious: refused by the package's own errors, and nothing in them is executed.

Any byte of any file of an artifact may be another. What has no checksum of its own (a preprocessor, a packed table) may
then hold other numbers; the manifest of the artifact around it tells (`test_artifacts`). What is promised here is that
no loader raises anything but its own error, unpickles, runs a program, or opens a file outside its folder.
"""

import copy
import gc
import json
import os
import pickle
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gigabatch.features.encoding.online import OnlineTransformer
from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.errors import DataError
from gigabatch.features.importers.fastai import import_fastai
from gigabatch.features.importers.nvtabular import import_nvtabular
from gigabatch.features.operators.categories.categorify import Categorify
from gigabatch.features.operators.groups.join_groupby import JoinGroupby
from gigabatch.features.operators.numbers.normalize import Normalize
from gigabatch.features.refit.statistics_files import load_statistics
from gigabatch.features.schema import Column, Schema, Target
from gigabatch.features.vocabulary.vocabulary import Vocabulary
from gigabatch.features.workflow.workflow import Workflow
from gigabatch.loaders.errors import LoaderError
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.tabular.tabular import TabularModel, TabularSettings
from gigabatch.pipeline.bundle import Bundle, BundleError, load_bundle
from gigabatch.pipeline.store.files import ArtifactError
from tests.examples import examples
from tests.features.damage import damaged
from tests.features.json_fuzz import JSON, places, replaced

OURS = (DataError, LoaderError, BundleError, ArtifactError)
FUZZ = settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
SCHEMA = Schema(
    (Column("word", "categorical", "string"), Column("number", "categorical", "int64"),
     Column("x", "continuous", "float32"), Column("y", "target", "float32")), (Target("y", "binary"),))  # fmt: skip
ROWS = pd.DataFrame({"word": pd.Series(["a", "b", "a", None], dtype="str"), "number": [1, 2, 2, 5],
                     "x": np.array([1.5, np.nan, 2.5, 4.0], "float32"), "y": np.float32([0, 1, 1, 0])})  # fmt: skip
LOADERS = {
    "preprocessor": lambda folder: Preprocessor.load(folder / "bundle" / "preprocessor"),
    "online": lambda folder: OnlineTransformer.load(folder / "bundle" / "preprocessor"),
    "statistics": lambda folder: load_statistics(folder / "bundle" / "preprocessor"),
    "vocabulary": lambda folder: Vocabulary.load(
        folder / "bundle" / "preprocessor" / "vocabulary-000.parquet", "pandas"
    ),
    "workflow": lambda folder: Workflow.load(folder / "bundle" / "workflow"),
    "bundle": lambda folder: load_bundle(folder / "bundle"),
    "packed": lambda folder: PackedTable.load(folder / "packed", mmap=False),
    "packed, mapped": lambda folder: PackedTable.load(folder / "packed", mmap=True),
    "fastai": lambda folder: import_fastai(folder / "fastai.json"),
    "nvtabular": lambda folder: import_nvtabular(folder / "nvtabular"),
}
READS = {
    "preprocessor": ["bundle/preprocessor"], "online": ["bundle/preprocessor"], "statistics": ["bundle/preprocessor"],
    "vocabulary": ["bundle/preprocessor/vocabulary-000.parquet"], "workflow": ["bundle/workflow"], "bundle": ["bundle"],
    "packed": ["packed"], "packed, mapped": ["packed"], "fastai": ["fastai.json"], "nvtabular": ["nvtabular"],
}  # fmt: skip


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with one of everything that is loaded."""
    from tests.features.importers.nvtabular_saved import Saved, counted

    folder = tmp_path_factory.mktemp("saved")
    preprocessor = Preprocessor(SCHEMA).fit([ROWS])
    tensors = preprocessor.tensor_schema
    inputs = ModelInputs(tuple(column.num_ids for column in tensors.ids), len(tensors.floats))
    steps = [Normalize("number"), JoinGroupby(["word"], ["number"], ["mean"]), Categorify("word")]
    workflow = Workflow(steps, labels=["y"]).fit([ROWS])
    model = TabularModel(inputs, TabularSettings())
    Bundle(preprocessor, model, {"recipe": "none"}, workflow=workflow).save(folder / "bundle")
    PackedTable(torch.from_numpy(preprocessor.pack(ROWS)), tensors).save(folder / "packed")
    export = json.loads(
        (Path(__file__).parents[2] / "features" / "importers" / "data" / "fastai_export.json").read_text()
    )["export"]
    (folder / "fastai.json").write_text(json.dumps(export))
    nvtabular = Saved(folder / "nvtabular")
    words = nvtabular.select("city", dtype="string")
    nvtabular.categorify(["city"], words, {"city": counted("city", ["Rome", "Bonn"], [9, 2], "str")})
    nvtabular.close()
    return folder


class Watch:
    """Notes, while it is on, what must never happen while an artifact is read."""

    FORBIDDEN = ("pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "subprocess.Popen",
                 "socket.connect", "shutil.rmtree", "os.remove", "os.rename")  # fmt: skip

    def __init__(self):
        self.on, self.seen = False, []
        sys.addaudithook(self._note)  # there is no way to take it away again

    def _note(self, event, arguments):
        if self.on and (event in self.FORBIDDEN or (event == "open" and self._writes(arguments))):
            self.seen.append((event, arguments))

    @staticmethod
    def _writes(arguments):
        path, _mode, flags = arguments
        return "__pycache__" not in str(path) and bool((flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))

    def __enter__(self):
        gc.disable()  # what earlier tests left behind may remove its leases when it is collected
        self.on, self.seen = True, []

    def __exit__(self, *_):
        self.on = False
        gc.enable()


WATCH = Watch()


def refused_or_loaded(name, folder):
    """Load, watched. True if it was refused by an error of ours; any other error and any forbidden act fails."""
    with WATCH:
        try:
            LOADERS[name](folder)
            refused = False
        except OURS:
            refused = True
    assert WATCH.seen == []
    return refused


def files_of(name, folder):
    found = [path for start in READS[name] for path in sorted([folder / start, *(folder / start).rglob("*")])]
    return [path for path in found if path.is_file()]


@pytest.fixture
def copied(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.mark.parametrize("name", LOADERS)
def test_what_was_saved_loads(saved, name):
    assert not refused_or_loaded(name, saved)


@pytest.mark.parametrize("name", LOADERS)
@FUZZ
@given(data=st.data())
def test_damaged_bytes_are_refused_by_our_own_error_or_load(saved, copied, name, data):
    path = data.draw(st.sampled_from(files_of(name, copied)), label="file")
    original = path.read_bytes()
    try:
        path.write_bytes(data.draw(damaged(original), label="content"))
        refused_or_loaded(name, copied)
    finally:
        path.write_bytes(original)


@pytest.mark.parametrize("name", LOADERS)
@FUZZ
@given(data=st.data())
def test_any_other_value_in_the_json_is_refused_by_our_own_error_or_loads(saved, copied, name, data):
    path = data.draw(st.sampled_from([path for path in files_of(name, copied) if path.suffix == ".json"] or [None]))
    if path is None:
        return
    original = path.read_text()
    value = json.loads(original)
    place = data.draw(st.sampled_from(places(value)))
    new = data.draw(
        JSON | st.sampled_from([10**400, -(10**30), 2**63, 1e308, float("nan"), float("inf"), "../../x", "\0"])
    )
    try:
        path.write_text(json.dumps(replaced(copy.deepcopy(value), place, new)))
        refused_or_loaded(name, copied)
    finally:
        path.write_text(original)


class Malice:
    """Its pickle makes a file when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", LOADERS)
def test_a_pickle_in_place_of_any_file_is_refused_and_never_run(copied, tmp_path, name):
    marker = tmp_path / "executed"
    for path in files_of(name, copied):
        if name == "online" and path.name.startswith("statistics"):
            continue  # which it does not read
        original = path.read_bytes()
        for payload in (pickle.dumps(Malice(marker)), as_npy(marker), as_torch(marker, tmp_path / "weights.pt")):
            path.write_bytes(payload)
            if name not in ("vocabulary", "statistics") or path.name.startswith(name[:10]):
                assert refused_or_loaded(name, copied) or not read_by(name, path), path
        path.write_bytes(original)
    assert not marker.exists()
    pickle.loads(pickle.dumps(Malice(marker)))
    assert marker.exists(), "the payload is none, so the test shows nothing"


def read_by(name, path):
    """Files beside those that a loader reads."""
    beside = {"statistics": ("preprocessor.json", "vocabulary"), "nvtabular": ("metadata.json", "meta."),
              "vocabulary": ()}  # fmt: skip
    return not path.name.startswith(beside.get(name, ("nothing",)))


def as_npy(marker):
    import io

    buffer = io.BytesIO()
    np.save(buffer, np.array([Malice(marker)], dtype=object), allow_pickle=True)
    return buffer.getvalue()


def as_torch(marker, path):
    torch.save({"weight": Malice(marker)}, path)
    return path.read_bytes()


@pytest.mark.parametrize("text", [
    "[" * 100_000, '{"a":' * 100_000, "9" * 100_000, '{"format": ' + "9" * 5000 + "}", "NaN", "null", "[]", '""', "",
    "{}",
    '{"format": 1}', '{"format": 1, "schema": NaN}', "\ufeff{}", '{"format": Infinity}',
])  # fmt: skip
@pytest.mark.parametrize("name", [name for name in LOADERS if name != "vocabulary"])
def test_json_of_no_sense_and_no_end_is_refused(copied, name, text):
    main = {"preprocessor": "bundle/preprocessor/preprocessor.json", "online": "bundle/preprocessor/preprocessor.json",
            "statistics": "bundle/preprocessor/statistics.json", "workflow": "bundle/workflow/workflow.json",
            "bundle": "bundle/bundle.json", "packed": "packed/layout.json", "packed, mapped": "packed/layout.json",
            "fastai": "fastai.json", "nvtabular": "nvtabular/graph.json"}  # fmt: skip
    (copied / main[name]).write_text(text)
    assert refused_or_loaded(name, copied)


def test_names_that_lead_outside_of_a_workflows_folder_are_refused(copied):
    folder = copied / "bundle" / "workflow"
    content = json.loads((folder / "workflow.json").read_text())
    (inside,) = [name for name in content["files"] if name.startswith("step-002")]
    shutil.copy(folder / inside, copied / "outside.parquet")
    for name in ("../../outside.parquet", str(copied / "outside.parquet"), "..\\outside.parquet", "a/../" + inside):
        text = (folder / "workflow.json").read_text().replace(inside, json.dumps(name)[1:-1])
        changed = json.loads(text)
        (folder / "workflow.json").write_text(json.dumps(signed(changed)))
        with pytest.raises(DataError, match="is not the name of a file"):
            Workflow.load(folder)
        (folder / "workflow.json").write_text(json.dumps(content))


def signed(content):
    """With the checksum that a forger would make."""
    from gigabatch.features.workflow.workflow import _checksum

    return {**content, "sha256": _checksum({key: value for key, value in content.items() if key != "sha256"})}


def test_a_workflow_names_only_operators_of_this_package(copied):
    folder = copied / "bundle" / "workflow"
    content = json.loads((folder / "workflow.json").read_text())
    for name in ("os.system", "subprocess", "builtins.eval", "__import__", "base", "configured", "../evil", "lambda"):
        content["steps"][0]["operator"] = name
        (folder / "workflow.json").write_text(json.dumps(signed(content)))
        with pytest.raises(DataError, match="unknown operator"):
            Workflow.load(folder)


def test_a_vocabulary_whose_footer_lies_is_refused(copied):
    path = copied / "bundle" / "preprocessor" / "vocabulary-000.parquet"
    table = pq.read_table(path)
    for count in (pa.array([-1, 2]), pa.array([1.0, 2.0]), pa.array(["1", "2"]), pa.array([None, 1], pa.int64())):
        changed = table.set_column(1, "count", count)
        pq.write_table(changed, path)
        with pytest.raises(DataError, match=r"vocabulary-000\.parquet"):
            Vocabulary.load(path, "pandas")
