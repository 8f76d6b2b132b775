"""What lists add to the phases of a step, counted by hand, and a profile of a run with lists."""

import json

import pytest
import torch

from gigabatch.features.schema import IdColumn, IdList, Target, TensorSchema
from gigabatch.loaders.tables.jagged import JaggedColumn
from gigabatch.loaders.tables.packed import Batch
from gigabatch.models.inputs import ListInputs, ModelInputs
from gigabatch.models.shelf import ModelSpec
from gigabatch.models.tabular.tabular import TabularSettings
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.lab.experiment import Experiment
from gigabatch.pipeline.lab.profile.step_needs import Asked, Form, Need, Network, Rates, step_needs
from gigabatch.pipeline.lab.profile.step_phases import (
    BACKWARD,
    EMBEDDING,
    FORWARD,
    GATHER,
    LOOKUP,
    PHASES,
)
from gigabatch.pipeline.lab.profile.step_profile import profile_steps
from gigabatch.pipeline.training.train import TrainingError
from tests.pipeline.list_rows import list_config

RATES = Rates(copy=100.0, random=10.0, packed=20.0, packed_words=4, matmul=1000.0, dtype=torch.float32)

# Tables [100, 3] and [10, 2] of columns and [6, 4] of tags; the history's elements are the second column's.
NETWORK = Network.of(
    ModelSpec(
        "tabular",
        ModelInputs((100, 10), 0, lists=(ListInputs(10, shares=1), ListInputs(6, weighted=True))),
        TabularSettings(layers=(8,), embedding_widths=(3, 2, 4)),
    ).build()
)
SCHEMA = TensorSchema(
    (IdColumn("a", 100), IdColumn("b", 10)), (), (Target("y", "binary"),),
    lists=(IdList("history", 10, shares="b"), IdList("tags", 6, weighted=True)),
)  # fmt: skip
"""Words of a row: two ids, a target, and the number of its row in each list."""


def test_what_a_batch_asks_is_counted_by_table():
    ids = torch.tensor([[3, 4], [3, 5], [4, 4]], dtype=torch.int32)
    history = JaggedColumn(torch.tensor([7, 4, 7, 6], dtype=torch.int32), torch.tensor([0, 2, 2, 4]))
    tags = JaggedColumn(torch.tensor([3, 3], dtype=torch.int32), torch.tensor([0, 1, 2, 2]), torch.ones(2))
    batch = Batch(ids, torch.empty(3, 0), torch.zeros(3, 1), None, lists=(history, tags))
    one = batch._replace(lists=(history.rows(torch.tensor([1, 1, 1])), tags))
    # users 3, 4; items 4, 5 and of the history 6, 7; tag 3. The second batch has no history.
    assert Asked.of([batch], NETWORK) == Asked((2.0, 4.0, 1.0), (4.0, 2.0), (False, True))
    assert Asked.of([batch, one], NETWORK) == Asked((2.0, 3.0, 1.0), (2.0, 2.0), (False, True))


def test_needs_with_lists_counted_by_hand():
    """64 rows of 5 words; 200 elements of 4 bytes and 90 with their weights of 8; inputs 3 + 2 + (2 + 4) pooled."""
    assert (NETWORK.columns, NETWORK.widths, NETWORK.list_tables) == ((0, 1), (3, 2, 4), (1, 2))
    elements, offsets = 200 * 4 + 90 * 8, 2 * 65 * 8
    form, asked = Form(2, 2, (56.0, 40.0, 72.0)), Asked((40.0, 9.0, 5.0), (200.0, 90.0), (False, True))
    needs = step_needs(NETWORK, SCHEMA, 64, asked, form)
    rows = 64 * 4 * 5
    assert needs[GATHER] == Need(
        stream=rows + 64 * 8 + elements + offsets, packed=rows + elements + 2 * 64 * 2 * 8
    )  # of each list and row where it begins and ends
    moved = 64 * 2 * 4 + elements + offsets + 64 * 5 * 2 + 64 * 6 * 4  # ids, and vectors: of columns halved, pooled not
    assert needs[LOOKUP] == Need(stream=moved, random=40 * 12 + 9 * 8 + 5 * 16)
    assert needs[EMBEDDING] == Need(stream=moved, random=40 * 56 + 9 * 40 + 5 * 72)
    assert needs[FORWARD] == Need(stream=64 * 2 * (11 + 2 * 8) + 64 * 4, flops=2 * 64 * (11 * 8 + 8))
    assert needs[BACKWARD].flops == 4 * 64 * (11 * 8 + 8)
    dense = step_needs(NETWORK, SCHEMA, 64, asked, Form(4, 4, None))[EMBEDDING]
    assert dense.stream == 64 * 2 * 4 + elements + offsets + 64 * 11 * 4 + 4 * (100 * 3 + 10 * 2 + 6 * 4)


@pytest.fixture
def quick(monkeypatch):
    """The machine is not measured here, and a step is timed in a moment."""
    monkeypatch.setattr("gigabatch.pipeline.lab.profile.step_profile.measure_rates", lambda *_: RATES)
    monkeypatch.setattr("gigabatch.pipeline.lab.profile.step_profile.WHOLE_STEP_SECONDS", 0.0)


def test_the_command_profiles_lists_however_tables_move(tmp_path, quick, capsys):
    path = str(list_config(tmp_path, "tabular"))
    for words in ((), ("model.dropout=0.1",), ("train.optimizer=adamw",)):
        assert main(["profile", "--config", path, "--steps", "4", "-q", *words]) == 0
        told = json.loads((tmp_path / "runs" / "tabular-True" / "profile.json").read_text())
        assert all(row["ms"] > 0 for row in told["phases"])
        assert [row["phase"] for row in told["phases"]] == [*PHASES, "sum"]
        assert told["unique_ids"] == [9, 2, 6]  # batches of 64 rows have all items, both places and all tags
        # Of 1 to 5 tags and 0 to 3 items seen a row, so three and one and a half of 64 rows.
        assert told["list_elements"] == pytest.approx([3 * 64, 1.5 * 64], rel=0.2)
        assert "of them elements of lists" in capsys.readouterr().out


def test_lists_beside_drawn_negatives_are_refused(tmp_path):
    experiment = Experiment.of_run(list_config(tmp_path, "tabular"), [])
    object.__setattr__(experiment.settings, "negatives", {"per_positive": 1})
    with pytest.raises(TrainingError, match=r"profile: what drawing negatives.*Set train\.negatives=null"):
        profile_steps(experiment, 4)
