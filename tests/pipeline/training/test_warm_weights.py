"""A warm start: rows of tables go with their values, with their optimizer rows; everything else as it is."""

import json
from copy import deepcopy
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.schema import Column, Entity, Schema, Target
from gigabatch.models.layers.embeddings import EmbeddingTables
from gigabatch.models.losses import TargetLoss
from gigabatch.models.model import Model
from gigabatch.models.optimizers.ema import WeightAverage
from gigabatch.models.optimizers.moments import moment_kinds, read_moments
from gigabatch.models.optimizers.registry import build_optimizer, set_lr_and_momentum
from gigabatch.models.shelf import MODELS, ModelSpec, model_class
from gigabatch.pipeline.bundle import Bundle
from gigabatch.pipeline.config.config import TrainSettings
from gigabatch.pipeline.stages.encode import pack
from gigabatch.pipeline.training.defaults import settle
from gigabatch.pipeline.training.start import ChangedError, TrainingRecord, WarmStart, held_ids
from gigabatch.pipeline.training.train import model_inputs, optimizer_of

COLUMNS = ("user", "item", "city")
SETTINGS = {
    "tabular": {"layers": (9,), "embedding_dropout": 0.0},
    "fm": {"embedding_dim": 4},
    "deepfm": {"embedding_dim": 3, "layers": (9,), "dropout": 0.0},
    "wide_deep": {"embedding_dim": 3, "layers": (9,), "crosses": ((0, 1), (2, 1)), "dropout": 0.0},
    "dlrm": {"embedding_dim": 4, "bottom_layers": (9,), "top_layers": (9,)},
    "dcn": {"embedding_dim": 3, "layers": (9,), "dropout": 0.0},
    "fcn": {"embedding_dim": 4, "exponential_layers": 2, "linear_layers": 2, "dropout": 0.0},
    "qnn": {"embedding_dim": 4, "num_layers": 2, "num_rows": 2, "dropout": 0.0},
    "finalmlp": {"embedding_dim": 3, "first_layers": (8,), "second_layers": (8,), "num_heads": 2},
    "autoint": {"embedding_dim": 4, "num_layers": 1},
    "ft_transformer": {"token_dim": 8, "num_heads": 2, "num_blocks": 1},
    "tabm": {"members": 2, "layers": (8,)},
    "realmlp": {"layers": (8,)},
    "ple": {"embedding_dim": 3, "layers": (8,), "tower_layers": ()},
    "esmm": {"embedding_dim": 3, "layers": (8,)},
    "multi_task": {"embedding_dim": 3, "layers": (8,), "num_experts": 2, "tower_layers": ()},
    "two_tower": {"embedding_dim": None, "layers": (9,), "vector_dim": 4},
    "mf": {"dim": 5},
    "ncf": {"gmf_dim": 3, "mlp_dim": 4, "layers": (8,), "context": "both", "context_dim": 2},
    "mrmn": {"dim": 4, "memory_slots": 3},
}
OPTIMIZERS = {
    "lamb": ("lamb", {}),
    "lamb dense": ("lamb", {"rowwise": False}),
    "lamb rows": ("lamb", {"rowwise_method": "lamb", "rowwise_step": "row"}),
    "adamw": ("adamw", {}),
    "adamw rows": ("adamw", {"rowwise": True, "rowwise_second_moment": "scalar"}),
    "cowclip": ("cowclip", {}),
}


@cache
def rows_of_day(day: int, rows: int = 400) -> pd.DataFrame:
    """Each day has values of its own, and the frequencies of others turn round; users and items are as many."""
    random = np.random.default_rng(day)
    frame = pd.DataFrame({"price": random.normal(size=rows), "age": random.normal(size=rows)})
    weights = np.arange(1, 9.0)[:: 1 if day % 2 else -1]
    for name, letter in zip(COLUMNS, "uic", strict=True):
        values = [f"{letter}{number}" for number in range(6)] + [f"{letter}{day}-{number}" for number in (1, 2)]
        frame[name] = random.permutation(random.choice(values, rows, p=weights / weights.sum()))
    frame["clicked"] = (random.random(rows) < 0.4).astype("float32")
    frame["weight"] = np.float32(1)
    return frame


SCHEMA = Schema(
    (
        *(Column(name, "categorical", "string") for name in COLUMNS),
        *(Column(name, "continuous", "float32") for name in ("price", "age")),
        Column("clicked", "target", "float32"),
    ),
    (Target("clicked", "binary"),),
    (Entity("user", "user", ("user",)), Entity("item", "item", ("item", "price"))),
)


def fitted(*days: int) -> Preprocessor:
    """Of these days' rows alone, with the fills, scales and edges of day 0, as `preprocess.from` keeps them."""
    return deepcopy(_fitted(*days))


@cache
def _fitted(*days: int) -> Preprocessor:
    found, first = Preprocessor(SCHEMA).fit([*map(rows_of_day, days)]), Preprocessor(SCHEMA).fit([rows_of_day(0)])
    found.fills, found.scales, found.edges = first.fills, first.scales, first.edges
    return found


def spec_for(name: str, preprocessor: Preprocessor) -> ModelSpec:
    return ModelSpec(name, model_inputs(preprocessor), model_class(name).Settings(**SETTINGS.get(name, {})))


def remembering(model: Model, preprocessor: Preprocessor) -> Model:
    table = pack(preprocessor, rows_of_day(0))
    batch = table.unpack(table.words)
    model.remember(batch.ids, batch.floats, batch.targets)
    return model


def trained_model(name: str, preprocessor: Preprocessor, optimizer="lamb", steps=3):
    """A model with weights of some size that has been moved by an optimizer, which comes with it."""
    torch.manual_seed(3)
    model = remembering(spec_for(name, preprocessor).build(), preprocessor)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.3)
    kind, settings = OPTIMIZERS[optimizer]
    moving = build_optimizer(model, kind, lr=0.01, **settings)
    table, loss = pack(preprocessor, rows_of_day(0)), TargetLoss([("binary", 1)])
    for step in range(steps):
        set_lr_and_momentum(moving, 0.01, 0.9)
        moving.zero_grad()
        model.train().training_loss(table.unpack(table.words[step * 64 : step * 64 + 64]), loss).backward()
        moving.step()
    return model.eval(), moving


def saved(folder, name="deepfm", optimizer="lamb", info=None, **record) -> WarmStart:
    """A start from a model that was trained on day 0."""
    preprocessor = fitted(0)
    model, moving = trained_model(name, preprocessor, optimizer)
    Bundle(preprocessor, model, info or {"name": "shop", "loss": "clicked: binary"}).save(folder / "model")
    held = held_ids(pack(preprocessor, rows_of_day(0)))
    TrainingRecord(read_moments(model, moving), moment_kinds(model, moving), trained=held, **record).save(
        folder / "training"
    )
    return WarmStart.load(folder, "pandas")


def carried(start: WarmStart, preprocessor: Preprocessor, new_rows: str = "mean"):
    """The model of the start over another vocabulary, and what was carried."""
    name = start.bundle.info.get("model", "deepfm")
    spec = start.spec_after(spec_for(name, preprocessor))
    start.require_unchanged(preprocessor, spec, start.bundle.info["loss"])
    torch.manual_seed(77)
    model = remembering(spec.build(), preprocessor)
    return model, start.carry(preprocessor, model, new_rows, held_ids(pack(preprocessor, rows_of_day(0))))


def info_of(name: str) -> dict[str, str]:
    return {"name": "shop", "loss": "log loss", "model": name}


# No rows of lists are carried over, so models that need some are left out.
STEPPED = [name for name in MODELS if model_class(name).learns_by_steps and not model_class(name).needs_lists]


@pytest.mark.parametrize("name", STEPPED)
def test_rows_of_known_values_score_as_before_wherever_their_ids_are_now(name, tmp_path):
    """The ids of each column have another order tonight, and some values are new: scores of the old are the same."""
    start, tonight = saved(tmp_path, name, info=info_of(name)), fitted(0, 1, 3)
    model, _ = carried(start, tonight)
    known = rows_of_day(0)
    before, now = (pack(preprocessor, known) for preprocessor in (start.bundle.preprocessor, tonight))
    assert not torch.equal(before.words[:, :3], now.words[:, :3])  # the ids have moved
    with torch.inference_mode():
        one, other = (
            net.eval()(rows.unpack(rows.words).ids, rows.unpack(rows.words).floats)
            for net, rows in ((start.bundle.model, before), (model, now))
        )
    assert one.std() > 0.01
    torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in STEPPED if name != "gplvmf"])  # whose rows speak through others
def test_a_table_is_of_the_column_whose_rows_it_changes(name):
    preprocessor = fitted(0)
    model, _ = trained_model(name, preprocessor)
    rows = pack(preprocessor, rows_of_day(0))
    batch = rows.unpack(rows.words)
    tables = [module for module in model.modules() if isinstance(module, EmbeddingTables)]
    told = [(table, column) for module in tables for table, column in zip(module.weights, module.columns, strict=True)]
    assert {column for _, column in told} >= ({0, 1} if name == "mf" else {0, 1, 2})  # keys of user and item alone
    with torch.no_grad():
        before = model(batch.ids, batch.floats)
        for table, column in told:
            if column is None:
                continue
            kept = table[4].clone()
            table[4] += 1.5
            changed = (model(batch.ids, batch.floats) != before).any(1)
            table[4] = kept
            # rows of a ReLU may stay where they are, but no other row may move
            assert changed.any()
            assert not (changed & (batch.ids[:, column] != 4)).any()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", ["deepfm", "ncf"])
def test_weights_and_moments_go_with_the_value(name, optimizer, tmp_path):
    """Held against a loop over values, by the tables' places in the model's own list of columns."""
    start, tonight = saved(tmp_path, name, optimizer, info=info_of(name)), fitted(1)
    model, taken = carried(start, tonight)
    old, weights = start.bundle.preprocessor, start.bundle.model.state_dict()
    moments, was = taken.record.moments, start.record.moments
    compared = 0
    for key, parameter in model.named_parameters():
        if ".tables." not in key:
            assert torch.equal(parameter, weights[key])
            assert_same_state(moments.get(key), was.get(key))
            continue
        column = COLUMNS[int(key.rpartition(".")[2])]
        compared += rows_that_went(old.vocabularies[column], tonight.vocabularies[column], start, taken, key, parameter)
    assert compared > 20
    for row, name_of in zip(taken.columns, COLUMNS, strict=True):
        before, now = (set(p.vocabularies[name_of].values) for p in (old, tonight))
        assert row == {
            "column": name_of, "carried": len(before & now), "new": len(now - before),
            "dropped": len(before - now), "absent": 0,
        }  # fmt: skip


def rows_that_went(before, now, start, taken, key, parameter):
    """How many rows of a table went with their value, each with its moments."""
    weights, was = start.bundle.model.state_dict()[key], start.record.moments.get(key)
    places = {value: 3 + place for place, value in enumerate(before.values.tolist())}
    ids = {0: 0, 1: 1, 2: 2} | {3 + i: places.get(value) for i, value in enumerate(now.values.tolist())}
    went = {number: earlier for number, earlier in ids.items() if earlier is not None}
    assert len(went) < len(ids)
    assert any(number != earlier for number, earlier in went.items())
    for name, state in taken.record.moments.get(key, {}).items():
        if state.dim() == 0:
            assert torch.equal(state, was[name])
            continue
        for number, earlier in ids.items():
            expected = torch.zeros_like(state[number]) if earlier is None else was[name][earlier]
            assert torch.equal(state[number], expected)
    for number, earlier in went.items():
        assert torch.equal(parameter[number], weights[earlier])
    return len(went)


def assert_same_state(one, other):
    assert (one is None) == (other is None)
    for key in one or {}:
        assert torch.equal(one[key], other[key]), key


def test_new_rows_start_at_the_mean_of_trained_ones_or_where_unseen_ones_were(tmp_path):
    start, tonight = saved(tmp_path, info=info_of("deepfm")), fitted(1)
    held = start.record.trained["user"].clone()
    held[5] = False  # a value whose row no training has moved
    start.record.trained["user"] = held
    weights = start.bundle.model.state_dict()["fields.tables.tables.0"]
    kept = [3, 4, *range(6, len(weights))]
    expected = {"mean": weights[kept].double().mean(0).float(), "unseen": weights[2]}
    for rule, row in expected.items():
        model, taken = carried(start, tonight, rule)
        values = tonight.vocabularies["user"].values.tolist()
        new = [3 + place for place, value in enumerate(values) if value.startswith("u1-")]
        assert len(new) == 2
        for number in new:
            assert torch.equal(model.fields.tables.tables[0][number], row)
        assert not taken.record.trained["user"][new].any()
        place = values.index(start.bundle.preprocessor.vocabularies["user"].values.tolist()[2])
        assert not taken.record.trained["user"][3 + place]


def test_a_column_that_held_no_value_takes_its_first_ones_from_the_unseen_row(tmp_path):
    """And one that loses all of its values keeps the special rows."""
    empty = fitted(0)
    city = empty.vocabularies["city"]
    empty = replace(
        empty, vocabularies=empty.vocabularies | {"city": replace(city, values=city.values[:0], counts=city.counts[:0])}
    )
    spec = spec_for("deepfm", empty)
    torch.manual_seed(5)
    Bundle(empty, spec.build(), info_of("deepfm")).save(tmp_path / "model")
    start = WarmStart.load(tmp_path, "pandas")
    model, taken = carried(start, fitted(0))
    table = start.bundle.model.state_dict()["fields.tables.tables.2"]
    assert table.shape[0] == 3
    assert torch.equal(model.fields.tables.tables[2], table[[0, 1, *[2] * (len(city.values) + 1)]])
    assert (taken.columns[2]["new"], taken.columns[2]["carried"]) == (len(city.values), 0)
    full = saved(tmp_path / "full", info=info_of("deepfm"))
    model = spec.build()
    held = {column.name: torch.ones(column.num_ids, dtype=torch.bool) for column in empty.tensor_schema.ids}
    taken = full.carry(empty, model, "mean", held)
    assert torch.equal(model.fields.tables.tables[2], full.bundle.model.state_dict()["fields.tables.tables.2"][:3])
    assert taken.columns[2]["dropped"] == len(city.values)


def test_carried_rows_stay_bit_for_bit_over_growths(tmp_path):
    """Ids too: vocabularies are updated as `preprocess.from` does it, and a night's training moves every row."""
    start, random = saved(tmp_path, info=info_of("deepfm")), torch.Generator().manual_seed(1)
    preprocessor = start.bundle.preprocessor
    for night in range(1, 13):
        counted = {name: rows_of_day(night, rows=40)[name].value_counts().reset_index() for name in COLUMNS}
        vocabularies = {
            name: known.update(counted[name].set_axis(["value", "count"], axis=1))
            for name, known in preprocessor.vocabularies.items()
        }
        grown = replace(preprocessor, vocabularies=vocabularies)
        model = spec_for("deepfm", grown).build()
        held = {column.name: torch.ones(column.num_ids, dtype=torch.bool) for column in grown.tensor_schema.ids}
        taken = start.carry(grown, model, "mean", held)
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
        preprocessor = grown
        start = replace(start, bundle=replace(start.bundle, preprocessor=grown, model=model), record=taken.record)
    assert min(row["carried"] for row in taken.columns) > 20


def test_what_is_another_now_is_named(tmp_path):
    start = saved(tmp_path, info=info_of("deepfm"))
    same, spec = fitted(0), spec_for("deepfm", fitted(0))
    start.require_unchanged(same, spec, "log loss")
    columns = tuple(column for column in SCHEMA.columns if column.name != "city")
    less = Preprocessor(replace(SCHEMA, columns=columns)).fit([rows_of_day(0)])
    with pytest.raises(ChangedError, match=r"other id columns .*with city"):
        start.require_unchanged(less, spec_for("deepfm", less), "log loss")
    turned = (SCHEMA.columns[1], SCHEMA.columns[0], *SCHEMA.columns[2:])
    other = Preprocessor(replace(SCHEMA, columns=turned)).fit([rows_of_day(0)])
    with pytest.raises(ChangedError, match=r"other id columns .in the order user, item, city"):
        start.require_unchanged(other, spec_for("deepfm", other), "log loss")
    anew = Preprocessor(SCHEMA).fit([rows_of_day(1)])
    with pytest.raises(ChangedError, match=r"another fill of 'price'.*another scale of 'age'.*preprocess\.from"):
        start.require_unchanged(anew, spec_for("deepfm", anew), "log loss")
    price = same.fills["price"]
    flags = replace(same, fills={**same.fills, "price": replace(price, silent=not price.silent)})
    with pytest.raises(ChangedError, match=r"with another indicator of 'price' \(.*no nulls.*\)\. "):
        start.require_unchanged(flags, spec, "log loss")
    edges = {**same.edges, "price": same.edges["price"][1:]}
    with pytest.raises(ChangedError, match="other edges of the bins of 'price'"):
        start.require_unchanged(replace(same, edges=edges), spec, "log loss")
    plain = saved(tmp_path / "plain", "lr", info=info_of("lr"))
    plain.require_unchanged(replace(same, edges=edges), spec_for("lr", same), "log loss")  # has no bins
    waves = ModelSpec("deepfm", spec.inputs, replace(spec.settings, numeric={"price": "periodic"}))
    with pytest.raises(ChangedError, match=r"model\.numeric bins, now \{'price': 'periodic', '\*': 'bins'\}"):
        start.require_unchanged(same, waves, "log loss")
    waved = replace(start, bundle=replace(start.bundle, model=waves.build()))
    waved.require_unchanged(replace(same, edges=edges), waves, "log loss")  # price has no bins now
    with pytest.raises(ChangedError, match="other edges of the bins of 'age'"):
        waved.require_unchanged(replace(same, edges={**edges, "age": same.edges["age"][1:]}), waves, "log loss")
    wider = ModelSpec("deepfm", spec.inputs, replace(spec.settings, embedding_dim=5))
    with pytest.raises(ChangedError, match=r"model\.embedding_dim 3, now 5"):
        start.require_unchanged(same, wider, "log loss")
    with pytest.raises(ChangedError, match="the model deepfm, now fm"):
        start.require_unchanged(same, spec_for("fm", same), "log loss")
    with pytest.raises(ChangedError, match="the loss log loss, now mse"):
        start.require_unchanged(same, spec, "mse")


def test_widths_that_a_rule_gave_stay_over_growths(tmp_path):
    """fastai's rule gives a larger vocabulary wider rows, which no carried row could have."""
    for name in ("tabular", "two_tower"):
        start = saved(tmp_path / name, name, info=info_of(name))
        grown = fitted(0)
        grown.update([pd.concat([rows_of_day(day) for day in range(40)])])
        spec = spec_for(name, grown)
        before = spec_for(name, fitted(0))
        assert spec.table_shapes[0][1] > before.table_shapes[0][1]
        model, taken = carried(start, grown)
        after = start.spec_after(spec)
        assert [shape[1] for shape in after.table_shapes] == [shape[1] for shape in before.table_shapes]
        # and in the night after that, whose configuration leaves the widths to the rule as ever
        later = replace(start, bundle=replace(start.bundle, preprocessor=grown, model=model), record=taken.record)
        grown = fitted(0)
        grown.update([pd.concat([rows_of_day(day) for day in range(60)])])
        model, _ = carried(later, grown)
        assert torch.equal(next(iter(model.parameters()))[:9], next(iter(start.bundle.model.parameters()))[:9])


def test_a_cross_that_comes_to_share_weights_is_that_of_the_lowest_ids(tmp_path, monkeypatch):
    monkeypatch.setitem(SETTINGS, "wide_deep", SETTINGS["wide_deep"] | {"cross_buckets": 150})
    start = saved(tmp_path, "wide_deep", info=info_of("wide_deep"))
    grown = fitted(0)
    grown.update([rows_of_day(day) for day in range(3)])
    model, taken = carried(start, grown)
    old, new = start.bundle.model, model
    assert old.crosses.hashed == [False, False]
    assert new.crosses.hashed == [True, True]
    weights, count = old.wide.tables.tables[3], old.inputs.num_ids[1]
    pairs = torch.tensor([[u, i, 0] for u in range(old.inputs.num_ids[0]) for i in range(count)])
    buckets = new.crosses(pairs)[:, 0].tolist()
    expected = {}
    for (user, item, _), bucket in zip(pairs.tolist(), buckets, strict=True):
        expected.setdefault(bucket, weights[user * count + item])
    assert len(expected) < len(buckets)
    for bucket, row in expected.items():
        assert torch.equal(new.wide.tables.tables[3][bucket], row)
    # from then on buckets stay, unless ids move
    later = replace(start, bundle=replace(start.bundle, preprocessor=grown, model=model), record=taken.record)
    more = fitted(0)
    more.update([rows_of_day(day) for day in range(3)])
    more.update([rows_of_day(3)])
    again, _ = carried(later, more)
    assert torch.equal(again.wide.tables.tables[3], new.wide.tables.tables[3])
    with pytest.raises(ChangedError, match="shares weights by a hash, and the ids of its columns have moved"):
        carried(later, fitted(1))


def test_moments_are_taken_by_an_optimizer_of_their_kind_alone(tmp_path):
    start = saved(tmp_path, info=info_of("deepfm"), ema_updates=7)
    preprocessor = fitted(0)
    for settings, expected in (
        ({}, "carried"),
        ({"lr_max": 0.5, "optimizer_settings": {"betas": [0.8, 0.99]}}, "carried"),
        ({"optimizer": "adamw"}, "fresh, as those of linear.float_weights are of another optimizer"),
        ({"optimizer_settings": {"rowwise_method": "lamb"}}, "fresh, as those of fields.tables"),
    ):
        model, taken = carried(start, preprocessor)
        whole = settle(TrainSettings(epochs=1, batch_size=64, **settings), 400, (9, 9, 9))
        optimizer, _ = optimizer_of(model, whole)
        average = WeightAverage(model, 0.9)
        taken.put_into(model, optimizer, average)
        assert taken.moments.startswith(expected)
        assert average.num_updates == 7
        found = read_moments(model, optimizer)
        assert found.keys() == (start.record.moments.keys() if expected == "carried" else set())
        for name, state in found.items():
            assert_same_state(state, start.record.moments[name])


def test_a_record_is_written_as_it_is_read(tmp_path):
    start = saved(tmp_path, ema_updates=3)
    start.record.save(tmp_path / "again")
    for name in ("optimizer.safetensors", "optimizer.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "training" / name).read_bytes()
    assert json.loads((tmp_path / "again" / "optimizer.json").read_text())["ema_updates"] == 3
    assert TrainingRecord.load(tmp_path / "nowhere") is None
