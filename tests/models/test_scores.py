"""A row's score, of every model of the shelf: the same within the tolerance alone, among others, and on any processor.

A float64 evaluation of the same weights stands outside; other processors are stood in for by this one with the
instruction sets of torch, MKL and oneDNN lowered.
"""

import copy
import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from gigabatch.models.errors import ModelError
from gigabatch.models.losses import TargetLoss
from gigabatch.models.model import SCORE_ATOL, SCORE_RTOL
from gigabatch.models.shelf import MODELS, model_class
from tests.models import shelf_scores
from tests.models.shelf_scores import NUM_ROWS, outputs_of, rows_of, save_shelf, shelf_model

# What the libraries read when they are loaded, and what torch then says of itself.
LOWERED = {
    "AVX2": {"MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
    "DEFAULT": {"MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default"},
}


@pytest.fixture(params=[1, 2], ids="{}_threads".format)
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def assert_same_scores(found: Tensor, expected: Tensor) -> None:
    """Outputs [N, O] as values, and the probabilities that they are the logits of, within the promised tolerance."""
    for task in ("regression", "binary"):
        loss = TargetLoss([(task, 1)] * expected.shape[1])
        for one, other in zip(loss.predict(found), loss.predict(expected), strict=True):
            torch.testing.assert_close(one, other, rtol=SCORE_RTOL, atol=SCORE_ATOL)


@pytest.mark.parametrize("name", MODELS)
def test_a_rows_scores_are_the_same_alone_and_among_many(name, threads, monkeypatch):
    model, rows = shelf_model(name), rows_of(name)
    whole = outputs_of(model, rows.ids, rows.floats, rows.lists)
    assert whole.shape == (NUM_ROWS, model.inputs.num_outputs)
    assert bool((whole.std(0) > 0.05).all())  # else a model that forgets its inputs would pass
    for block_rows, num_rows in ((1, 40), (7, 40), (128, NUM_ROWS)):
        some = rows.part(torch.arange(num_rows))
        assert_same_scores(outputs_of(model, some.ids, some.floats, some.lists, block_rows), whole[:num_rows])
    order = torch.randperm(NUM_ROWS, generator=torch.Generator().manual_seed(3))
    part = rows.part(order)
    assert_same_scores(outputs_of(model, part.ids, part.floats, part.lists), whole[order])
    words = torch.cat([rows.ids, rows.floats.view(torch.int32)], dim=1)  # ids and floats as views of packed rows
    num_ids = rows.ids.shape[1]
    views = words[:, :num_ids], words[:, num_ids:].view(torch.float32)
    assert_same_scores(outputs_of(model, *views, rows.lists), whole)
    with monkeypatch.context() as patch:
        patch.setattr(Tensor, "float", Tensor.double)  # where a model turns half precision into float32
        exact = outputs_of(copy.deepcopy(model).double(), rows.ids, rows.floats.double(), rows.lists)
    assert exact.dtype == torch.float64
    assert_same_scores(whole, exact)


@pytest.mark.parametrize("capability", LOWERED)
def test_the_shelfs_scores_are_the_same_with_fewer_instructions(capability, tmp_path):
    given, found = tmp_path / "given.pt", tmp_path / "found.pt"
    save_shelf(given)
    environment = os.environ | LOWERED[capability] | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, shelf_scores.__file__, given, found], env=environment, check=True, timeout=500)
    there = torch.load(found)
    assert there["capability"] == capability
    assert list(there["outputs"]) == list(MODELS)
    for name, outputs in there["outputs"].items():
        rows = rows_of(name)
        assert_same_scores(outputs, outputs_of(shelf_model(name), rows.ids, rows.floats, rows.lists))


def test_an_unknown_model_lists_those_there_are():
    with pytest.raises(ModelError, match=r"unknown model 'mlp'\. Known: tabular, lr, fm"):
        model_class("mlp")
