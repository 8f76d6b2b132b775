"""Histories of rows to be scored that come as text: ids that the separator would cut are refused."""

from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.errors import DataError
from gigabatch.features.recipes.interactions.histories import HistorySettings
from gigabatch.features.recipes.interactions.recipe import InteractionsSettings
from gigabatch.features.schema import Column, ListColumn, Schema
from gigabatch.features.workflow.workflow import Workflow
from gigabatch.pipeline.bundle import Bundle
from gigabatch.pipeline.stages import score as module
from gigabatch.pipeline.stages.score import score_run


class Passed(Exception):
    """The check let the rows through."""


def score(folder, monkeypatch, name: str, ask: pd.DataFrame, separator: str) -> None:
    """`score --input` of a model that knows the items `a|b` and `c`, up to where it goes on after the check."""

    def stop(*_):
        raise Passed

    schema = Schema(
        (Column("what", "categorical", "string"),), (), lists=(ListColumn("history", "string", "what", None, 3),)
    )
    train = pd.DataFrame({"what": ["a|b", "c"], "history": [["c"], []]})
    features = InteractionsSettings(
        path=str(folder / "log.csv"), user="who", item="what", time="when", history=HistorySettings(3, None, separator)
    )
    workflow = Workflow([], outputs=("what", "history"))
    bundle = Bundle(Preprocessor(schema).fit([train]), torch.nn.Identity(), {}, workflow=workflow)
    as_dict = lambda: {"features": {}}  # noqa: E731
    config = SimpleNamespace(recipe="interactions", features=features, runs=folder, name="tiny", to_dict=as_dict)
    pipeline = SimpleNamespace(config=config, engine="pandas", device="cpu", store=SimpleNamespace(root=folder))
    monkeypatch.setattr(module, "obey", stop)
    monkeypatch.setattr(module, "find_run", lambda *_: SimpleNamespace(path=folder))
    monkeypatch.setattr(module, "load_bundle", lambda *_: bundle)
    monkeypatch.setattr(module.Pipeline, "from_config", lambda *_: pipeline)
    path = folder / name
    ask.to_csv(path, index=False) if name.endswith("csv") else ask.to_parquet(path)
    score_run("run.yaml", (), None, None, None, raw=str(path))


def test_an_id_that_holds_the_separator_is_refused_where_histories_are_text(tmp_path, monkeypatch):
    text = pd.DataFrame({"who": ["u"], "what": ["c"], "history": ["a|b"]})
    with pytest.raises(DataError, match=r"ask\.csv: '\|' .* item id 'a\|b' .*features\.history\.separator"):
        score(tmp_path, monkeypatch, "ask.csv", text, "|")


@pytest.mark.parametrize(
    ("name", "history", "separator"),
    [("ask.csv", "a|b;c", ";"), ("ask.parquet", ["a|b", "c"], "|"), ("ask.csv", None, "|")],
)
def test_other_separators_lists_and_looked_up_histories_are_taken(tmp_path, monkeypatch, name, history, separator):
    ask = pd.DataFrame({"who": ["u"], "what": ["c"], "history": [history]})
    with pytest.raises(Passed):
        score(tmp_path, monkeypatch, name, ask if history else ask[["who", "what"]], separator)
