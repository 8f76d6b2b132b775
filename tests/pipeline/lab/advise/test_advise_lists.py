"""`gigabatch advise` of a run with lists."""

import json

import pytest
import torch

from gigabatch.loaders.tables.jagged import JaggedColumn
from gigabatch.loaders.tables.packed import Batch
from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import ListInputs, ModelInputs
from gigabatch.models.shelf import ModelSpec, model_class
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.lab.advise.advise import looked_up
from tests.pipeline.list_rows import list_config


def batch_of_three() -> Batch:
    """Ids of two columns; a list that shares the second one's vocabulary and one with its own."""
    ids = torch.tensor([[3, 4], [3, 5], [4, 4]], dtype=torch.int32)
    history = JaggedColumn(torch.tensor([7, 4, 7, 6], dtype=torch.int32), torch.tensor([0, 2, 2, 4]))
    tags = JaggedColumn(torch.tensor([3, 3, 3], dtype=torch.int32), torch.tensor([0, 1, 3, 3]))
    return Batch(ids, torch.empty(3, 0), torch.zeros(3, 1), None, lists=(history, tags))


INPUTS = ModelInputs((5, 9), 0, lists=(ListInputs(9, shares=1), ListInputs(4)))


def test_rows_of_a_shared_table_are_those_of_column_and_list_together():
    """Counted by hand: users 3 and 4; items 4 and 5 of the column, 4, 6 and 7 of the list; the tag 3."""
    model = ModelSpec("tabular", INPUTS, model_class("tabular").Settings()).build()
    assert [sorted(ids.unique().tolist()) for ids in looked_up(model, batch_of_three())] == [[3, 4], [4, 5, 6, 7], [3]]


def test_a_model_that_looks_up_more_does_not_tell():
    """A cross of two columns has a table whose ids are in no column."""
    model = ModelSpec("wide_deep", INPUTS, model_class("wide_deep").Settings(crosses=((0, 1),))).build()
    with pytest.raises(ModelError, match="looks up more than the ids of its columns and lists"):
        looked_up(model, batch_of_three())


def test_the_command_predicts_ranks_that_share_rows_with_lists(tmp_path, capsys):
    line = ["--config", str(list_config(tmp_path, "lr")), "--seconds", "1", "--bandwidth", "1e9", "--json", "-q"]
    assert main(["advise", *line]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {(one["num_devices"], one["tables"]) for one in told["predictions"]} >= {
        (2, "replicated"), (2, "sharded")
    }  # fmt: skip
    assert all(one["sent_for_tables"] > 0 for one in told["predictions"])
    item, place, tags = told["profile"][0]["distinct"]  # batches of 64 rows: all 9 items, both places, all 6 tags
    assert (item, place, tags) == (9, 2, 6)
