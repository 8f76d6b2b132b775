"""The needs of a step's phases: bytes and flops counted by hand, and by the models themselves."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gigabatch.features.schema import IdColumn, Target, TensorSchema
from gigabatch.loaders.batches.dataset import BatchDataset
from gigabatch.loaders.negatives.draws import UniformNegatives
from gigabatch.loaders.negatives.implicit import ImplicitBatches, apart_from
from gigabatch.loaders.negatives.table import KnownPositives
from gigabatch.loaders.tables.entity_rows import EntityRows
from gigabatch.models.inputs import EntityColumns, ModelInputs
from gigabatch.models.recommenders.ncf import NCFSettings
from gigabatch.models.shelf import ModelSpec
from gigabatch.models.tabular.tabular import TabularSettings
from gigabatch.pipeline.lab.experiment import Experiment
from gigabatch.pipeline.lab.profile.step_needs import (
    Asked,
    Draws,
    Form,
    Need,
    Network,
    Rates,
    comparisons_by_user,
    draw_need,
    step_needs,
)
from gigabatch.pipeline.lab.profile.step_phases import (
    BACKWARD,
    DENSE,
    EMBEDDING,
    FORWARD,
    GATHER,
    LOOKUP,
    LOSS,
    PHASES,
    Laps,
    PhasedStep,
)

SMALL = ("train.batch_size=64",)
RATES = Rates(copy=100.0, random=10.0, packed=20.0, packed_words=4, matmul=1000.0, dtype=torch.float32)


# Tables [100, 3] and [10, 2], 4 floats, layers 8 and 5, one output.
TWO_TABLES = Network.of(
    ModelSpec("tabular", ModelInputs((100, 10), 4), TabularSettings(layers=(8, 5), embedding_widths=(3, 2))).build()
)
SCHEMA = TensorSchema(
    (IdColumn("a", 100), IdColumn("b", 10)), ("p", "q", "r", "s"), (Target("y", "binary"),), has_weight=True
)
WORDS = 8


def test_needs_of_rows_that_move_alone():
    """Counted by hand. 64 rows; 9 inputs, 13 hidden, 1 output; 9 x 8 + 8 x 5 + 5 x 1 = 117 weights."""
    # A row of LAMB: weight and first moment, 3 floats each, and a second moment; read and written.
    form = Form(2, 2, (2 * (12 + 12 + 4), 2 * (8 + 8 + 4)))
    needs = step_needs(TWO_TABLES, SCHEMA, 64, Asked((40.0, 9.0)), form)
    assert list(needs) == list(PHASES)
    assert needs[GATHER] == Need(stream=64 * 4 * WORDS + 64 * 8, packed=64 * 4 * WORDS)
    assert needs[LOOKUP] == Need(stream=64 * 2 * 4 + 64 * 5 * 2, random=40 * 12 + 9 * 8)
    assert needs[FORWARD] == Need(stream=64 * 2 * (9 + 2 * 13) + 64 * 4, flops=2 * 64 * 117)
    assert needs[LOSS] == Need(stream=64 * 8 + 64 * 4)
    assert needs[BACKWARD] == Need(stream=64 * 2 * (2 * 9 + 3 * 13) + 64 * 4, flops=4 * 64 * 117)
    assert needs[EMBEDDING] == Need(stream=64 * 2 * 4 + 64 * 5 * 2, random=40 * 56 + 9 * 40)
    assert needs[DENSE] == Need(stream=28 * 117)


def test_bytes_of_drawing_counted_by_hand():
    """Sixteen positives, three negatives each: rows of 2 ids, 4 floats and a weight, then also target and group."""
    put = 16 * (8 + 8 + 8 + 8) + 48 * 20 + 16 * 4 * 7 + 64 * 4 * 9
    free = Draws(3, knows=False, comparisons=0.0, weighted=False, item_words=1, items=30.0)
    assert draw_need(free, SCHEMA, 16) == Need(stream=put)
    uniform = replace(free, knows=True, comparisons=2.5)
    assert draw_need(uniform, SCHEMA, 16) == Need(stream=put, random=16 * 28 + 48 * 2.5 * 4)
    weighted = replace(uniform, weighted=True)
    assert draw_need(weighted, SCHEMA, 16) == Need(stream=put, random=16 * 28 + 48 * (2.5 * 8 + 8 + 8 + 4))
    described = replace(uniform, item_words=3)  # the key and two features
    random = 16 * 28 + 48 * 2.5 * 4 + 30 * 3 * 4
    assert draw_need(described, SCHEMA, 16) == Need(stream=put + 64 * 3 * 4, random=random)


USER, ITEM = EntityColumns(1, (1,)), EntityColumns(0, (0, 3), (1,))


@pytest.mark.parametrize(
    ("context", "widths", "weights", "hidden", "elementwise"),
    [
        # Two halves of 4 and 6, layers 8 and 3: 12 x 8 + 8 x 3 + (4 + 3) x 1 weights.
        ("none", (10, 10), 127, 8 + 3 + 4, 4),
        # Vectors of context of 2 in the MLP and of 4 in the products; two floats: 18 x 8 + 8 x 3 + 15 x 1 + 2 x 4.
        ("both", (10, 10, 6, 6), 191, 8 + 3 + 12 + 4, 12 + 3 * 4),
    ],
)
def test_the_shape_of_ncf_counted_by_hand(context, widths, weights, hidden, elementwise):
    inputs = ModelInputs((30, 20, 5, 7), 2, user=USER, item=ITEM)
    settings = NCFSettings(gmf_dim=4, mlp_dim=6, layers=(8, 3), context=context, context_dim=2)
    found = Network.of(ModelSpec("ncf", inputs, settings).build())
    assert (found.columns, found.num_ids) == ((1, 0, 2, 3)[: len(widths)], (20, 30, 5, 7)[: len(widths)])
    assert (found.widths, found.weights, found.hidden, found.elementwise) == (widths, weights, hidden, elementwise)
    assert (found.num_outputs, found.num_floats) == (1, 2 if context == "both" else 0)


@given(
    pairs=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)), min_size=1, max_size=120),
    first=st.integers(0, 3),
)
def test_comparisons_are_the_rounds_of_a_binary_search(pairs, first):
    """Halving a user's list until nothing is left, counted in a loop; ids below `first` are no items to draw."""
    users, items = (torch.tensor(column, dtype=torch.int32) for column in zip(*pairs, strict=True))
    known = KnownPositives.from_pairs(users, items, 4)
    drawn = range(first, 60)
    sampler = UniformNegatives(drawn, 1, apart_from(known, drawn))
    words = EntityRows(torch.zeros(60, 1, dtype=torch.int32), 0, (0,), ())
    found = comparisons_by_user(ImplicitBatches(sampler, 1, words, drawn))
    expected = []
    for user in range(4):
        left, rounds = len({item for who, item in pairs if who == user and item >= first}), 0
        while left > 0:
            left, rounds = left // 2, rounds + 1
        expected.append(rounds)
    assert found.tolist() == expected


@pytest.mark.parametrize(
    ("overrides", "touched"),
    [
        # Of a table of width D: weight and first moment, 4 D bytes each, read and written; a second moment a row.
        (("train.optimizer=lamb", "train.optimizer_settings.rowwise_method=lamb"), lambda width: 16 * width + 8),
        (("train.optimizer=lamb",), lambda width: 8 * width + 8),  # row-wise Adagrad has no first moment
        (("train.optimizer=adamw",), None),
    ],
    ids=["rows of lamb", "lamb", "adamw"],
)
def test_a_rows_state_is_read_off_the_optimizer(trained, overrides, touched):
    experiment = Experiment.of_run(trained[0].config, [*SMALL, *overrides, "train.precision=float32"])
    step = PhasedStep(experiment, experiment.new_model(1).train(), Laps("cpu"))
    step(BatchDataset(experiment.train, 64, drop_last=True), 0)
    found = Form.of(step)
    assert found.activation_bytes == found.lookup_bytes == 4
    if touched is None:
        assert found.touched_row_bytes is None
    else:
        assert found.touched_row_bytes == pytest.approx(
            [touched(width) for width in Network.of(experiment.new_model(1)).widths]
        )


def test_a_floor_is_the_longer_of_memory_and_arithmetic():
    assert Need(stream=200, random=30, packed=40).floor_seconds(RATES) == 2 + 3 + 2
    assert Need(stream=200, flops=5000).floor_seconds(RATES) == 5
    assert Need(stream=200, random=30, packed=40).num_bytes == 270
