"""Training on several ranks against the same training on one: curves, weights, steps that are skipped, checkpoints."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gigabatch.features.schema import Column, IdColumn, IdList, ListColumn, Schema, Target, TensorSchema
from gigabatch.loaders.negatives.draws import UniformNegatives
from gigabatch.loaders.negatives.implicit import ImplicitBatches, apart_from
from gigabatch.loaders.tables.entity_rows import EntityRows
from gigabatch.loaders.tables.jagged import JaggedColumn
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.models.inputs import EntityColumns, ListInputs, ModelInputs
from gigabatch.models.losses import TargetLoss
from gigabatch.models.parallel.ranks import Ranks
from gigabatch.models.shelf import ModelSpec, model_class
from gigabatch.pipeline.config.config import EvaluateSettings, TrainSettings
from gigabatch.pipeline.evaluation.evaluate import evaluate, permutation_importance
from gigabatch.pipeline.training import train as module
from gigabatch.pipeline.training.defaults import settle
from gigabatch.pipeline.training.start import Carried
from gigabatch.pipeline.training.train import new_model, train_model
from tests.models.parallel.together import together

NUM_IDS = (7, 40)
ROWS, VALID, BATCH = 250, 150, 50  # 5 steps an epoch; 3 ranks have 16, 17 and 17 rows
# How far curves and weights of several ranks may be from those of one: sums in float32 in another order, over 10 steps.
CURVE, WEIGHTS = {"rtol": 2e-5, "atol": 2e-5}, {"rtol": 2e-3, "atol": 2e-4}


LISTS = (  # one of its own, one by the table of id1, and one that most rows, and parts of batches, have nothing of
    IdList("tags", 9, weighted=True), IdList("history", 40, shares="id1"), IdList("rare", 5)
)  # fmt: skip


def lists_of(rows: int, random: torch.Generator) -> tuple[JaggedColumn, ...]:
    lengths = [torch.randint(top, (rows,), generator=random) for top in (5, 8, 60)]
    lengths[2] = (lengths[2] == 7).long()
    found = []
    for column, own in zip(LISTS, lengths, strict=True):
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), own.cumsum(0)])
        ids = torch.randint(column.num_ids, (int(offsets[-1]),), generator=random, dtype=torch.int32)
        weights = torch.rand(len(ids), generator=random) if column.weighted else None
        found.append(JaggedColumn(ids, offsets, weights))
    return tuple(found)


def table(rows: int, seed: int, weighted: bool = False, lists: bool = False) -> PackedTable:
    random = torch.Generator().manual_seed(seed)
    ids = [torch.randint(size, (rows,), generator=random, dtype=torch.int32) for size in NUM_IDS]
    floats = list(torch.randn(3, rows, generator=random))
    label = (2 * floats[0] + ids[0] % 3 + torch.randn(rows, generator=random) > 1).float()
    schema = TensorSchema(
        tuple(IdColumn(f"id{i}", n) for i, n in enumerate(NUM_IDS)),
        ("a", "b", "c"),
        (Target("label", "binary"),),
        has_weight=weighted,
        lists=LISTS if lists else (),
    )
    weight = torch.rand(rows, generator=random) * (torch.arange(rows) % 5 > 0) if weighted else None
    columns = lists_of(rows, random) if lists else ()
    return PackedTable.from_columns(schema, ids, floats, [label], weight, lists=columns)


def inputs(lists: bool = False) -> ModelInputs:
    user, item = EntityColumns(0, (0,), ()), EntityColumns(1, (1,), ())
    of_lists = ListInputs(9, weighted=True), ListInputs(40, shares=1), ListInputs(5)
    return ModelInputs(NUM_IDS, 3, 1, user=user, item=item, lists=of_lists if lists else ())


def negatives_of(positives: PackedTable) -> ImplicitBatches:
    items = range(3, NUM_IDS[1])
    sampler = UniformNegatives(items, 2, seed=5, known=apart_from(None, items))
    return ImplicitBatches(sampler, None, EntityRows.of(positives, 1, (1,)), items)


def trained(ranks: Ranks, folder: Path, case: dict, steps: int | None = None):
    """Curve, weights and counts of a training of this case in `folder`, on all ranks alike."""
    os.fsync = lambda handle: None
    torch.manual_seed(4)
    kind, settings = case["model"]
    weighted, lists = case.get("weighted", False), case.get("lists", False)
    model = model_class(kind)(inputs(lists), model_class(kind).Settings(**settings))
    train, valid = table(ROWS, 1, weighted, lists), table(VALID, 2, weighted, lists)
    options = TrainSettings(
        **{"epochs": 2, "batch_size": BATCH, "lr_max": 0.02, "checkpoint_every_steps": 3, "precision": "float32"}
        | case.get("train", {})
    )
    if case.get("nan"):  # in one row, which is one rank's
        train.words[57, len(NUM_IDS)] = torch.tensor([float("nan")]).view(torch.int32)
    negatives = negatives_of(train) if case.get("negatives") else None
    folder.mkdir(parents=True, exist_ok=True)

    class Crash(Exception):
        pass

    def stop(step: int) -> None:
        if step == steps:
            raise Crash

    try:
        found = train_model(
            model, train, valid, TargetLoss([("binary", 1)]), options, seed=3, device="cpu", folder=folder,
            ranks=ranks, after_step=stop, negatives=negatives,
        )  # fmt: skip
    except Crash:
        return None
    return found.curve, dict(found.model.state_dict()), (found.steps, found.rows, found.skipped_steps)


def without_bytes(curve):
    return [{name: value for name, value in point.items() if name != "sent_bytes"} for point in curve]


def require_alike(told, one) -> None:
    """Every rank has the first one's bits; and the first is within the tolerance of one rank alone."""
    for curve, weights, counts in told[1:]:
        assert curve == told[0][0]
        assert counts == told[0][2]
        assert all(torch.equal(weights[name], value) for name, value in told[0][1].items())
    assert told[0][2] == one[2]
    assert len(told[0][0]) == len(one[0])
    for found, expected in zip(without_bytes(told[0][0]), one[0], strict=True):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            if isinstance(value, float):
                torch.testing.assert_close(found[name], value, **CURVE)
            else:
                assert found[name] == value
    for name, value in one[1].items():
        torch.testing.assert_close(told[0][1][name], value, **WEIGHTS)


TABULAR_LAMB = "tabular lamb"
TABULAR = ("tabular", {"layers": [16, 8], "dropout": 0.2, "embedding_dropout": 0.1})
CASES = {
    TABULAR_LAMB: {"model": TABULAR},
    "tabular weighted": {"model": TABULAR, "weighted": True},
    "tabular adamw, dense tables": {"model": TABULAR, "train": {"optimizer": "adamw", "lr_max": 0.003}},
    "deepfm cowclip": {
        "model": ("deepfm", {"layers": [8], "dropout": 0.2}),
        "train": {"optimizer": "cowclip", "lr_max": 0.003},
    },
    "dcn clipped, averaged": {
        "model": ("dcn", {"layers": [8], "dropout": 0.2}),
        "train": {"optimizer": "adamw", "lr_max": 0.003, "max_grad_norm": 0.1, "ema_decay": 0.9},
    },
    "dlrm": {"model": ("dlrm", {}), "train": {"max_grad_norm": None}},
    "ncf with drawn negatives": {"model": ("ncf", {}), "negatives": True},
    "a row that is not a number": {"model": TABULAR, "nan": True},
    "ft_transformer, dropout of attention": {
        "model": ("ft_transformer", {"token_dim": 8, "num_heads": 2, "num_blocks": 2, "attention_dropout": 0.3})
    },
    "fcn, tri loss, weighted": {"model": ("fcn", {"embedding_dim": 4, "dropout": 0.1}), "weighted": True},
    "qnn, self-ensemble": {"model": ("qnn", {"embedding_dim": 4, "num_layers": 2, "num_rows": 2})},
    "tabm weighted": {"model": ("tabm", {"members": 3, "layers": [8], "dropout": 0.2}), "weighted": True},
    "realmlp": {"model": ("realmlp", {"layers": [8], "dropout": 0.2})},
    "weighted, by log loss": {"model": TABULAR, "weighted": True, "train": {"select_by": "logloss", "patience": 1}},
    "autoint, dropout of attention": {"model": ("autoint", {"num_layers": 2, "attention_dropout": 0.3})},
    "lists of tabular, a row that is not a number": {"model": TABULAR, "lists": True, "nan": True},
    "lists of tabular, dense tables": {
        "model": TABULAR, "lists": True, "train": {"optimizer": "adamw", "lr_max": 0.003}
    },
    "lists of deepfm cowclip": {
        "model": ("deepfm", {"layers": [8], "dropout": 0.2}),
        "lists": True,
        "train": {"optimizer": "cowclip", "lr_max": 0.003},
    },
    "lists of dcn weighted, averaged": {
        "model": ("dcn", {"layers": [8], "dropout": 0.2}),
        "lists": True,
        "weighted": True,
        "train": {"ema_decay": 0.9},
    },
    "sasrec with dropout, whose parts have longest histories of their own": {
        "model": ("sasrec", {"dim": 8, "loss": "bce", "dropout": 0.3}), "lists": True
    },
}  # fmt: skip


def all_trained(ranks: Ranks, folder: Path, names: list[str], steps: int | None = None):
    return {name: trained(ranks, folder / name, CASES[name], steps) for name in names}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def runs(folder):
    """What each rank of 1, 2 and 3 has found in every case: processes start once, and load compiled loops once."""
    names = {1: [*CASES], 2: [*CASES][:1], 3: [*CASES], 4: [*CASES][:1]}
    return {number: together(all_trained, number, folder, folder / str(number), some) for number, some in names.items()}


@pytest.mark.parametrize(("name", "number"), [*((name, 3) for name in CASES), (TABULAR_LAMB, 2), (TABULAR_LAMB, 4)])
def test_curve_and_weights_do_not_depend_on_the_number_of_ranks(name, number, runs, folder):
    (one,) = (found[name] for found in runs[1])
    told = [found[name] for found in runs[number]]
    require_alike(told, one)
    assert one[2][2] == (2 if CASES[name].get("nan") else 0)
    files = [folder / str(count) / name / "metrics.jsonl" for count in (1, number)]
    lines = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    assert [line.keys() - {"sent_bytes"} for line in lines[1]] == [line.keys() for line in lines[0]]
    assert lines[1] == told[0][0]


def test_a_checkpoint_of_three_ranks_goes_on_on_two_and_on_one(runs, tmp_path):
    names = [TABULAR_LAMB, "lists of deepfm cowclip"]
    assert together(all_trained, 3, tmp_path, tmp_path / "run", names, 7) == [dict.fromkeys(names)] * 3
    assert all((tmp_path / "run" / name / "checkpoint.pt").exists() for name in names)
    shutil.copytree(tmp_path / "run", tmp_path / "alone")
    two = together(all_trained, 2, tmp_path, tmp_path / "run", names)
    last = together(all_trained, 1, tmp_path, tmp_path / "alone", names)
    for name in names:
        (one,) = (found[name] for found in runs[1])
        require_alike([found[name] for found in two], one)
        require_alike([found[name] for found in last], one)


def test_bytes_of_an_epoch_are_those_of_the_formulas(runs):
    curve, weights, _ = runs[3][0][TABULAR_LAMB]
    sent = curve[-1]["sent_bytes"]
    kind, settings = TABULAR
    model = model_class(kind)(inputs(), model_class(kind).Settings(**settings))
    dense = sum(value.numel() for name, value in model.named_parameters() if "tables" not in name)
    steps, ranks = 5, 3
    reduced = steps * 2 * (ranks - 1)  # of all ranks together, a byte of each rank
    assert sent["all_reduce gradients"] == pytest.approx(reduced * 4 * dense, rel=1e-3)
    norms = 2 * (3 + 16 + 8) + 2 * (16 + 8)  # float64: two sums of each column forward; backward not of the floats
    assert sent["all_reduce batch norm"] == pytest.approx(reduced * 8 * norms, rel=1e-3)
    assert sent["all_gather loss and counts"] == steps * ranks * (ranks - 1) * 8 * 5  # two tables, and the loss
    width = sum(value.shape[1] for name, value in weights.items() if "tables" in name)
    assert 0 < sent["all_gather row gradients"] <= steps * (ranks - 1) * 4 * BATCH * (2 + width)


REFUSED = {
    "accumulate_steps=2": ({"model": TABULAR, "train": {"accumulate_steps": 2}}, "Set it to 1"),
    "compile=on": ({"model": TABULAR, "train": {"compile": "on"}}, "is for one rank"),
    "two_tower": ({"model": ("two_tower", {"loss": "softmax"})}, "compares rows of a batch"),
    "des lists": ({"model": ("lr", {}), "lists": True, "train": {"tables": "des"}}, "Set train.tables=sharded"),
    "batch_size": ({"model": TABULAR, "train": {"batch_size": 2}}, "leaves some of 3 ranks without one"),
}


def refused(ranks: Ranks, folder: Path):
    found = {}
    for name, (case, _) in REFUSED.items():
        try:
            trained(ranks, folder / name, case)
        except ValueError as error:
            found[name] = str(error)
    return found


def test_what_ranks_cannot_do_alike_is_refused_on_all_of_them(tmp_path):
    for found in together(refused, 3, tmp_path, tmp_path):
        assert found.keys() == REFUSED.keys()
        for name, (_, text) in REFUSED.items():
            assert text in found[name]


def measured_both(ranks: Ranks):
    return [measured(ranks, lists) for lists in (False, True)]


def measured(ranks: Ranks, lists: bool):
    """Outputs, loss and importance of tables of several blocks, of fewer blocks than ranks, and of no row."""
    module.BLOCK_ROWS = 40
    torch.manual_seed(0)
    kind, settings = TABULAR
    model, loss, found = (
        model_class(kind)(inputs(lists), model_class(kind).Settings(**settings)),
        TargetLoss([("binary", 1)]),
        [],
    )
    for rows in (VALID, 50, 30):
        part = table(rows, 5, weighted=True, lists=lists)
        found.append(module.table_outputs(model, part, "cpu", ranks))
        found.append(torch.tensor(module.table_loss(model, part, loss, "cpu", ranks)))
    no_row = table(1, 5, lists=lists)
    found.append(module.table_outputs(model, no_row.with_words(no_row.words[:0]), "cpu", ranks))
    columns = [Column(f"id{place}", "categorical", "int64") for place in range(2)]
    columns += [Column(name, "continuous", "float32") for name in "abc"]
    of_lists = ListColumn("tags", weights="w"), ListColumn("history", "int64", shares="id1"), ListColumn("rare")
    schema = Schema(
        (*columns, Column("label", "target", "float32")),
        (Target("label", "binary"),),
        lists=of_lists if lists else (),
    )
    settings = EvaluateSettings(importance_repeats=2)
    asked = model, table(VALID, 5, lists=lists), schema, settings, 1, "cpu", ranks
    return found, permutation_importance(*asked), len(evaluate(*asked[:3], "cpu", 15, ranks).metrics)


def test_evaluation_and_importance_of_ranks_are_those_of_one_to_the_bit(tmp_path):
    """Of a table without lists, and of one with them."""
    (alone,) = together(measured_both, 1, tmp_path)
    told = together(measured_both, 3, tmp_path)
    for place, (one, columns) in enumerate(zip(alone, (5, 8), strict=True)):
        assert [len(outputs) for outputs in one[0][::2]] == [VALID, 50, 30, 0]
        assert len(one[1][1]) == columns
        for rank, (found, importance, targets) in enumerate(part[place] for part in told):
            assert all(torch.equal(part, expected) for part, expected in zip(found, one[0], strict=True))
            assert importance == one[1]
            assert targets == (1 if rank == 0 else 0)


SPREAD = {"tables": "sharded", "kernels": "reference"}  # compiled ones: tests/models/parallel/test_sharded.py
SHARDED = {
    "tabular lamb, a row not a number": {"model": TABULAR, "nan": True, "train": SPREAD},
    "dcn averaged": {
        "model": ("dcn", {"layers": [8], "dropout": 0.2}),
        "train": {"optimizer": "cowclip", "lr_max": 0.003, "ema_decay": 0.9} | SPREAD,
    },
    "wide_deep crosses, weighted, by log loss": {
        "model": ("wide_deep", {"layers": [8], "crosses": [[0, 1]]}),
        "weighted": True,
        "train": {"select_by": "logloss"} | SPREAD,
    },
    "lists of tabular, a row that is not a number": {"model": TABULAR, "lists": True, "nan": True, "train": SPREAD},
    "lists of wide_deep cowclip, weighted, compiled kernels": {
        "model": ("wide_deep", {"layers": [8], "crosses": [[0, 1]], "pooling": "sum"}),
        "lists": True,
        "weighted": True,
        "train": {"optimizer": "cowclip", "lr_max": 0.003, "tables": "sharded"},
    },
    "lists of sasrec with dropout": {
        "model": ("sasrec", {"dim": 8, "loss": "bce", "dropout": 0.3}), "lists": True, "train": SPREAD
    },
}  # fmt: skip


def warm(ranks: Ranks, folder: Path, weights, record):
    """A training from these weights, and from this state of an optimizer where there is one."""
    torch.manual_seed(4)
    model = model_class("deepfm")(inputs(), model_class("deepfm").Settings(layers=[8]))
    start = None
    if record is not None:
        model.load_state_dict(weights)
        start = Carried("earlier", record, True, [])
    folder.mkdir(parents=True, exist_ok=True)
    options = TrainSettings(epochs=1, batch_size=BATCH, lr_max=0.02, precision="float32", **SPREAD)
    found = train_model(
        model, table(ROWS, 1), table(VALID, 2), TargetLoss([("binary", 1)]), options, seed=3, device="cpu",
        folder=folder, ranks=ranks, start=start,
    )  # fmt: skip
    return found.curve, dict(found.model.state_dict()), found.record


def sharded(ranks: Ranks, folder: Path, half: Path | None, start):
    """All cases without a break; the rest of those in `half`, whose checkpoints another number of ranks has written; a
    warm start."""
    found = {name: trained(ranks, folder / name, case) for name, case in SHARDED.items()}
    rest = {}
    for name, case in SHARDED.items() if half is not None else ():
        if ranks.is_first:
            shutil.copytree(half / name, folder / "rest" / name)
        ranks.barrier()
        rest[name] = trained(ranks, folder / "rest" / name, case)
    return found, rest, warm(ranks, folder / "warm", *start)


def halves(ranks: Ranks, folder: Path):
    """Trainings that end within the second epoch: their checkpoints are of step 6."""
    for name, case in SHARDED.items():
        trained(ranks, folder / name, case, 8)


def test_sharded_tables_train_as_one_rank_and_checkpoints_go_on_on_fewer_ranks(tmp_path):
    half = tmp_path / "half"
    together(halves, 3, tmp_path, half)
    ((_, weights, record),) = together(warm, 1, tmp_path, tmp_path / "start", None, None)
    start = weights, record
    ((one, alone, alone_warm),) = together(sharded, 1, tmp_path, tmp_path / "1", half, start)
    two = together(sharded, 2, tmp_path, tmp_path / "2", half, start)
    for name, expected in one.items():
        require_alike([alone[name]], expected)
        for part in (0, 1):
            first, second = (told[part][name] for told in two)
            assert (first[0], first[2]) == (second[0], second[2])
            require_alike([first], expected)
        sent = two[0][0][name][0][-1]["sent_bytes"]
        assert {"all_to_all ids", "all_to_all rows", "all_to_all gradients of rows"} <= sent.keys()
        assert "all_gather row gradients" not in sent
    curve, weights, record = two[0][2]
    assert curve[-1]["valid_loss"] == pytest.approx(alone_warm[0][-1]["valid_loss"], rel=1e-4)
    for name, value in alone_warm[1].items():
        torch.testing.assert_close(weights[name], value, **WEIGHTS)
    for name, state in alone_warm[2].moments.items():
        for key, value in state.items():
            torch.testing.assert_close(record.moments[name][key], value, **WEIGHTS)


@pytest.mark.parametrize(("kind", "function"), [("sharded", "shard_tables"), ("des", "substitute_tables")])
def test_the_plan_of_tables_counts_drawn_negatives(monkeypatch, kind, function):
    """A rank looks up the rows that its part of the batch becomes: 64 rows of 2 ranks, each with three negatives."""
    told = {}
    monkeypatch.setattr(module, function, lambda *_, batch_rows, **__: told.update(batch_rows=batch_rows))
    monkeypatch.setattr(module, "optimizer_of", lambda *_: (None, None))
    ranks = Ranks()
    ranks.num_ranks, ranks.gather = 2, lambda value, name: [value] * 2
    module.spread_tables(torch.nn.Linear(1, 1), SimpleNamespace(tables=kind), ranks, 64, "cpu", None, copies=4)
    assert told == {"batch_rows": 32 * 4}


def calibrated_by_both(ranks: Ranks) -> list[list[tuple]]:
    return [calibrated(ranks, kind) for kind in ("temperature", "isotonic")]


def calibrated(ranks: Ranks, kind: str) -> list[tuple]:
    """Curves fitted to valid rows of three blocks, of which the first follows other chances than the rest."""
    random = torch.Generator().manual_seed(8)
    rows = 2 * module.BLOCK_ROWS + 1000
    x = torch.randn(rows, generator=random)
    slopes = torch.where(torch.arange(rows) < module.BLOCK_ROWS, 3.0, 0.3)
    label = (torch.rand(rows, generator=random) < torch.sigmoid(slopes * x)).float()
    schema = TensorSchema((), ("x",), (Target("label", "binary"),))
    model = model_class("lr")(ModelInputs((), 1), model_class("lr").Settings())
    with torch.no_grad():
        model.linear.float_weights.fill_(1.0)
    module.calibrate(model, PackedTable.from_columns(schema, [], [x], [label]), kind, -0.5, "cpu", ranks)
    return [(curve.output, curve.x, curve.y, curve.slope) for curve in model.calibration]


def test_several_ranks_calibrate_on_the_whole_valid_split(tmp_path):
    whole = calibrated_by_both(Ranks())
    assert all(whole)
    assert together(calibrated_by_both, 2, tmp_path) == [whole, whole]
    assert 0.4 < whole[0][0][3] < 2.5  # the temperature is between the slopes of the blocks


@pytest.mark.parametrize(("free", "spread"), [(1 << 40, False), (1000, True)])
def test_tables_of_lists_stay_whole_or_are_sharded_where_a_rank_has_no_room(monkeypatch, free, spread):
    """By `train.tables=auto`, which would spread tables that take more than half of a rank's memory."""
    monkeypatch.setattr(module, "free_memory", lambda _: free)
    ranks = Ranks()
    ranks.num_ranks, ranks.gather = 2, lambda value, name: [value] * 2
    model = model_class("lr")(inputs(lists=True), model_class("lr").Settings())
    asked = model, settle(TrainSettings(tables="auto", batch_size=BATCH), ROWS, NUM_IDS), ranks, BATCH, "cpu", None
    tables = module.spread_tables(*asked, list_lengths=(2.0, 3.5, 0.1))
    assert (tables is not None) == spread
    assert model.linear.tables.is_sharded == spread


def beside_lines(ranks: Ranks):
    """A regression whose line is another one on each rank, as of processors of two kinds, and what came of it."""
    given = table(ROWS, 1)
    schema = replace(given.schema, targets=(Target("label", "regression"),))
    rows, loss = PackedTable(given.words, schema), TargetLoss([("regression", 1)])
    asked = ModelInputs(NUM_IDS, 3, 1, targets=(("regression", 1),))
    spec = ModelSpec("tabm", asked, model_class("tabm").Settings(members=3, layers=(8,)))
    model = new_model(spec, rows, 1, loss)
    of_first = model.beside.weight.clone()
    model.beside.weight *= 1 + 1e-6 * ranks.rank
    settings = TrainSettings(epochs=1, batch_size=BATCH, lr_max=0.02, precision="float32")
    found = train_model(model, rows, rows, loss, settings, seed=3, device="cpu", folder=None, ranks=ranks)
    return of_first, dict(found.model.state_dict())


def test_ranks_have_the_line_of_the_first(tmp_path):
    """It is a sum and a root of each one's processor; an epoch ended with weights that are no longer equal."""
    (of_first, one), (_, other) = together(beside_lines, 2, tmp_path)
    assert of_first.abs().sum() > 0
    assert torch.equal(one["beside.weight"], of_first)
    assert all(torch.equal(other[name], value) for name, value in one.items())
