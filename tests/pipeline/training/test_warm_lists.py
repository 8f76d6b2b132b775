"""A warm start over lists: rows of lists' vocabularies, their own and shared ones, go with the elements that they are
of, with their optimizer rows."""

from copy import deepcopy
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.schema import Column, Entity, ListColumn, Schema, Target
from gigabatch.models.losses import TargetLoss
from gigabatch.models.model import model_call
from gigabatch.models.optimizers.moments import moment_kinds, read_moments
from gigabatch.models.optimizers.registry import build_optimizer, set_lr_and_momentum
from gigabatch.models.shelf import MODELS, ModelSpec, model_class
from gigabatch.pipeline.bundle import Bundle
from gigabatch.pipeline.stages.encode import pack
from gigabatch.pipeline.training.start import ChangedError, TrainingRecord, WarmStart, held_ids
from gigabatch.pipeline.training.train import model_inputs
from tests.pipeline.training.test_warm_weights import OPTIMIZERS, SETTINGS, rows_that_went

ROWS = 300
SCHEMA = Schema(
    (
        Column("city", "categorical", "string"),
        Column("item", "categorical", "string"),
        Column("price", "continuous", "float32"),
        Column("clicked", "target", "float32"),
    ),
    (Target("clicked", "binary"),),
    entities=(Entity("user", "city", ("city",)), Entity("item", "item", ("item",))),  # which some models ask for
    lists=(ListColumn("history", shares="item"), ListColumn("tags", weights="w"), ListColumn("again", shares="tags")),
)
INPUTS = ("city", "item", "history", "tags", "again")  # as a model has them
OWNERS = dict(zip(INPUTS, ("city", "item", "item", "tags", "tags"), strict=True))


@cache
def rows_of_day(day: int) -> pd.DataFrame:
    """Each day has values and elements of its own, and the frequencies of others turn round."""
    random = np.random.default_rng(day)
    weights = np.arange(1, 9.0)[:: 1 if day % 2 else -1]

    def drawn(letter: str, count: int) -> list[str]:
        values = [f"{letter}{number}" for number in range(6)] + [f"{letter}{day}-{number}" for number in (1, 2)]
        return random.choice(values, count, p=weights / weights.sum()).tolist()

    lengths = {name: random.integers(0, 5, ROWS) for name in ("history", "tags", "again")}
    frame = pd.DataFrame({name: drawn(name[0], ROWS) for name in ("city", "item")})
    frame["price"] = random.normal(size=ROWS)
    frame["clicked"] = (random.random(ROWS) < 0.4).astype("float32")
    frame["weight"] = np.float32(1)
    for name, own in lengths.items():
        # one item is in the history alone, and of no row itself
        frame[name] = [drawn(OWNERS[name][0], n) + ["i-seen"] * (name == "history") for n in own]
    frame["w"] = [random.uniform(0.5, 2, n).tolist() for n in lengths["tags"]]
    return frame


def fitted(*days: int) -> Preprocessor:
    """Of these days' rows alone, with the fills, scales and edges of day 0, as `preprocess.from` keeps them."""
    return deepcopy(_fitted(*days))


@cache
def _fitted(*days: int) -> Preprocessor:
    found, first = Preprocessor(SCHEMA).fit([*map(rows_of_day, days)]), Preprocessor(SCHEMA).fit([rows_of_day(0)])
    found.fills, found.scales, found.edges = first.fills, first.scales, first.edges
    return found


def spec_for(name: str, preprocessor: Preprocessor) -> ModelSpec:
    own = SETTINGS.get(name, {}) | ({"crosses": ((0, 1),)} if name == "wide_deep" else {})
    return ModelSpec(name, model_inputs(preprocessor), model_class(name).Settings(**own))


def batch_of(preprocessor: Preprocessor, day: int, stop: int = ROWS):
    table = pack(preprocessor, rows_of_day(day))
    return table.unpack(table.words[:stop])


def saved(folder, name="deepfm", optimizer="lamb") -> WarmStart:
    """A start from a model whose weights have some size, and that an optimizer has moved on day 0."""
    bundle, record = _moved(name, optimizer)
    bundle.save(folder / "model")
    record.save(folder / "training")
    return WarmStart.load(folder, "pandas")


@cache
def _moved(name: str, optimizer: str) -> tuple[Bundle, TrainingRecord]:
    preprocessor = fitted(0)
    torch.manual_seed(3)
    model = spec_for(name, preprocessor).build()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.3)
    kind, settings = OPTIMIZERS[optimizer]
    moving = build_optimizer(model, kind, lr=0.01, **settings)
    set_lr_and_momentum(moving, 0.01, 0.9)
    for stop in (100, ROWS):
        moving.zero_grad()
        model.train().training_loss(batch_of(preprocessor, 0, stop), TargetLoss([("binary", 1)])).backward()
        moving.step()
    bundle = Bundle(preprocessor, model.eval(), {"name": "shop", "loss": "log loss", "model": name})
    held = held_ids(pack(preprocessor, rows_of_day(0)))
    return bundle, TrainingRecord(read_moments(model, moving), moment_kinds(model, moving), trained=held)


def carried(start: WarmStart, preprocessor: Preprocessor, new_rows: str = "mean"):
    spec = start.spec_after(spec_for(start.bundle.info["model"], preprocessor))
    start.require_unchanged(preprocessor, spec, "log loss")
    torch.manual_seed(77)
    model = spec.build()
    return model, start.carry(preprocessor, model, new_rows, held_ids(pack(preprocessor, rows_of_day(0))))


@pytest.mark.parametrize("name", [name for name in MODELS if model_class(name).takes_lists])
def test_rows_of_known_elements_score_as_before_wherever_their_ids_are_now(name, tmp_path):
    start, tonight = saved(tmp_path, name), fitted(0, 1, 3)
    model, _ = carried(start, tonight)
    before, now = batch_of(start.bundle.preprocessor, 0), batch_of(tonight, 0)
    assert all(not torch.equal(a.ids, b.ids) for a, b in zip(before.lists, now.lists, strict=True))  # they have moved
    with torch.inference_mode():
        one, other = (
            model_call(net.eval(), rows.ids, rows.floats, rows.lists)
            for net, rows in ((start.bundle.model, before), (model, now))
        )
    assert one.std() > 0.01
    torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_weights_and_moments_go_with_the_element(optimizer, tmp_path):
    """Held against a loop over elements, by the tables' places: id columns, then lists that share none."""
    start, tonight = saved(tmp_path, "deepfm", optimizer), fitted(1)
    model, taken = carried(start, tonight)
    old, weights = start.bundle.preprocessor, start.bundle.model.state_dict()
    compared = {"city": 0, "item": 0, "tags": 0}
    for key, parameter in model.named_parameters():
        if ".tables." not in key:
            assert torch.equal(parameter, weights[key])
            continue
        column = ("city", "item", "tags")[int(key.rpartition(".")[2])]
        before, now = old.vocabularies[column], tonight.vocabularies[column]
        assert now.layout.first == 3
        compared[column] += rows_that_went(before, now, start, taken, key, parameter)
    assert min(compared.values()) >= 12
    assert [row["column"] for row in taken.columns] == ["city", "item", "tags"]
    for row in taken.columns:
        before, now = (set(p.vocabularies[row["column"]].values) for p in (old, tonight))
        assert (row["carried"], row["new"], row["dropped"]) == (
            len(before & now), len(now - before), len(before - now)
        )  # fmt: skip


def test_an_element_is_held_wherever_a_list_of_its_vocabulary_has_it():
    preprocessor, frame = fitted(0), rows_of_day(0)[:40]
    found = held_ids(pack(preprocessor, frame))
    assert list(found) == ["city", "item", "tags"]
    for owner, held in found.items():
        names = [name for name, other in OWNERS.items() if other == owner]
        values = {v for name in names for cell in frame[name] for v in ([cell] if isinstance(cell, str) else cell)}
        known = preprocessor.vocabularies[owner].values.tolist()
        expected = [False] * 3 + [value in values for value in known]
        assert held.tolist() == expected
    assert "i-seen" not in frame["item"].tolist()
    assert found["item"][3 + preprocessor.vocabularies["item"].values.tolist().index("i-seen")]


def test_new_elements_start_at_the_mean_of_trained_ones_or_where_unseen_ones_were(tmp_path):
    start, tonight = saved(tmp_path), fitted(1)
    start.record.trained["tags"][5] = False
    weights = start.bundle.model.state_dict()["fields.tables.tables.2"]
    kept = [3, 4, *range(6, len(weights))]
    for rule, row in {"mean": weights[kept].double().mean(0).float(), "unseen": weights[2]}.items():
        model, taken = carried(start, tonight, rule)
        values = tonight.vocabularies["tags"].values.tolist()
        new = [3 + place for place, value in enumerate(values) if value.startswith("t1-")]
        assert len(new) == 2
        for number in new:
            assert torch.equal(model.fields.tables.tables[2][number], row)
        assert not taken.record.trained["tags"][new].any()


def test_carried_rows_stay_bit_for_bit_over_growths(tmp_path):
    start, random = saved(tmp_path), torch.Generator().manual_seed(1)
    grown = start.bundle.preprocessor
    nights = 4
    for night in range(1, 1 + nights):
        grown = replace(grown, vocabularies=dict(grown.vocabularies))
        grown.update([rows_of_day(night)])
        model, taken = carried(start, grown)
        for name, value in start.bundle.model.state_dict().items():
            found = model.state_dict()[name]
            assert torch.equal(found[: len(value)] if value.dim() else found, value), (night, name)
        for name, state in start.record.moments.items():
            for key, value in state.items():
                found = taken.record.moments[name][key]
                assert torch.equal(found[: len(value)] if value.dim() else found, value), (night, name, key)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=random) * 0.01)
        start = replace(start, bundle=replace(start.bundle, preprocessor=grown, model=model), record=taken.record)
    assert {row["column"]: row["new"] for row in taken.columns}["tags"] == 2
    assert len(grown.vocabularies["tags"].values) == 8 + nights * 2


def test_a_width_that_a_rule_gave_stays_over_growths_of_a_list(tmp_path):
    start = saved(tmp_path, "tabular")
    grown = fitted(0)
    for first in (1, 15):
        grown.update([pd.concat([rows_of_day(day) for day in range(first, first + 14)], ignore_index=True)])
    before, plain = (spec_for("tabular", preprocessor).table_shapes for preprocessor in (fitted(0), grown))
    assert plain[2][1] > before[2][1]
    model, _ = carried(start, grown)
    old = start.bundle.model.state_dict()
    compared = 0
    for name, value in model.state_dict().items():
        if "tables.2" in name:
            assert torch.equal(value[: len(old[name])], old[name])
            compared += 1
    assert compared


@pytest.mark.parametrize(
    ("lists", "said"),
    [
        (SCHEMA.lists[:2], "other list columns .with again of the vocabulary of tags"),
        ((SCHEMA.lists[1], SCHEMA.lists[0], SCHEMA.lists[2]), "other list columns .in the order history"),
        ((ListColumn("history"), *SCHEMA.lists[1:]), "without history and with history of the vocabulary of item"),
        ((SCHEMA.lists[0], ListColumn("tags"), SCHEMA.lists[2]), "without tags and with tags with weights"),
        ((), "other list columns"),
    ],
)
def test_other_lists_are_named(lists, said, tmp_path):
    start = saved(tmp_path)
    other = Preprocessor(replace(SCHEMA, lists=lists)).fit([rows_of_day(0)])
    with pytest.raises(ChangedError, match=said):
        start.require_unchanged(other, spec_for("deepfm", other), "log loss")


def test_a_start_of_a_record_without_lists_takes_the_values_that_its_rows_held(tmp_path):
    start = saved(tmp_path)
    whole = start.record.trained.pop("tags")
    tonight = fitted(1)
    _, taken = carried(start, tonight)
    start.record.trained["tags"] = whole
    _, expected = carried(start, tonight)
    same = taken.record.trained["tags"][3:], expected.record.trained["tags"][3:]
    assert torch.equal(*same)
    assert same[0].any()
