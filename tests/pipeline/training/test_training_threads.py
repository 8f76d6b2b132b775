"""Small steps are trained on one thread, where nothing else is set."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from gigabatch.features.schema import IdColumn, Target, TensorSchema
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.shelf import MODELS, model_class
from gigabatch.pipeline.training.threads import step_operations, training_threads
from tests.processes import python


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def rows() -> PackedTable:
    schema = TensorSchema((IdColumn("city", 9),), ("x", "y"), (Target("label", "binary"),))
    ids, floats = torch.arange(6, dtype=torch.int32), [torch.arange(6.0), torch.ones(6)]
    return PackedTable.from_columns(schema, [ids], floats, [torch.ones(6)])


def model_of(kind: str, **settings):
    return model_class(kind)(ModelInputs((9,), 2), model_class(kind).Settings(**settings))


def test_operations_are_three_times_the_products_and_a_thousand_a_lookup(rows):
    model = model_of("tabular", layers=(16,), embedding_width_max=4)
    wide = 4 + 2  # the embedding and the floats
    products = 2 * (wide * 16 + 16 * 1)
    assert model.embeddings.tables[0].shape == (9, 4)
    assert step_operations(model, rows, 64) == 64 * (3 * products + 1_000)
    members = model_of("tabm", layers=(16,), members=8)
    assert step_operations(members, rows, 64) > 8 * 64 * 3 * 2 * 16 * 2


@pytest.mark.parametrize(
    ("batch_size", "given", "threads"),
    [
        (64, {}, 1),
        (1 << 20, {}, 2),
        (64, {"num_threads": 2}, 2),
        (64, {"num_ranks": 2}, 2),
        (64, {"device": "cuda"}, 2),
    ],
)
def test_a_small_step_gets_one_thread_unless_something_else_is_set(rows, two_threads, batch_size, given, threads):
    asked = {"device": "cpu", "num_threads": None} | given
    with training_threads(model_of("tabular", layers=(16,)), rows, batch_size, **asked) as found:
        assert (found, torch.get_num_threads()) == (threads, threads)
    assert torch.get_num_threads() == 2


def test_a_model_without_steps_and_one_thread_stay_as_they_are(rows, two_threads):
    fitted = model_class("popularity").__new__(model_class("popularity"))
    with training_threads(fitted, rows, 64, "cpu", None) as found:
        assert found == 2
    torch.set_num_threads(1)
    with training_threads(model_of("lr"), rows, 1 << 20, "cpu", None) as found:
        assert found == 1


def test_a_run_says_how_many_and_has_the_weights_of_so_many(tiny, two_threads):
    runs = [tiny.train()]
    assert torch.get_num_threads() == 2
    runs += [tiny.train(f"num_threads={number}") for number in (1, 2)]
    assert [run.skipped for run in runs] == [(), ("features", "encode"), ("features", "encode")]
    assert tiny.train("num_threads=2").skipped == ("features", "encode", "train", "evaluate")
    assert [run.summary["trained"]["threads"] for run in runs] == [1, 1, 2]
    weights = [next((run.path / "model").glob("*.safetensors")).read_bytes() for run in runs]
    assert weights[0] == weights[1]


def test_the_operations_of_every_model_of_rows_are_counted(rows):
    """finalmlp hands a parameter to a module, which the counter does not take in inference mode."""
    counted = []
    for kind in sorted(MODELS):
        try:
            model = model_of(kind)
        except ModelError:  # needs users, items, lists or targets
            continue
        if model.learns_by_steps:
            found = step_operations(model.train(), rows, 64)
            assert found > 0, kind
            with FlopCounterMode(display=False) as counter, torch.no_grad():
                few = rows.unpack(rows.words[:2])
                model.eval()(few.ids, few.floats)
            model.train()
            assert found == 64 * (3 * counter.get_total_flops() / 2 + 1_000), kind
            assert model.training
            counted.append(kind)
    assert {"tabular", "finalmlp", "tabm", "realmlp", "ft_transformer", "deepfm", "dcn"} <= set(counted)


def test_neither_operations_nor_the_size_of_tables_load_torchs_compiler():
    """It takes more than a second, which would be most of what a small training takes."""
    code = """
import sys, torch
from gigabatch.features.schema import IdColumn, Target, TensorSchema
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.shelf import ModelSpec, model_class
from gigabatch.pipeline.training.threads import step_operations
inputs = ModelInputs((9,), 1, float_edges=((0.0, 1.0, 4.0),))
spec = ModelSpec("tabular", inputs, model_class("tabular").Settings())
schema = TensorSchema((IdColumn("city", 9),), ("x",), (Target("label", "binary"),))
rows = PackedTable.from_columns(schema, [torch.arange(6, dtype=torch.int32)], [torch.arange(6.0)], [torch.ones(6)])
print(spec.table_parameters > 0, step_operations(spec.build(), rows, 64) > 0, "torch._dynamo" in sys.modules)
"""
    done = python(code)  # of a process that has imported the package, and no compiler either
    assert (done.stdout.split(), done.stderr) == (["True", "True", "False"], "")
