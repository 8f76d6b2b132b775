"""What training takes where a configuration says nothing: the rule by hand, and that explicit settings win."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.schema import IdColumn, Target, TensorSchema
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.models.click.fm import FactorizationMachine
from gigabatch.models.click.lr import LogisticRegression
from gigabatch.models.inputs import EntityColumns, ModelInputs
from gigabatch.models.losses import TargetLoss
from gigabatch.models.shelf import ModelSpec, model_class
from gigabatch.models.tabular.tabm import TabM
from gigabatch.models.tabular.tabular import TabularModel
from gigabatch.pipeline.config.config import TrainSettings, WholeTrainSettings
from gigabatch.pipeline.training.defaults import few_steps_text, id_sizes, rule_of, rule_text, settle
from gigabatch.pipeline.training.train import optimizer_of, table_loss, train_model
from tests.examples import examples

LOSS = TargetLoss([("binary", 1)])


@pytest.mark.parametrize(
    ("rows", "num_ids", "epochs", "batch_size"),
    [
        (2_000, (), 40, 64),  # 80,000 visits over 1,500 steps are 53 rows
        (28_950, (9, 16, 7, 42), 13, 512),  # 400,000 / 28,950; the root of 28,950 / 148 is 13.99; 376,350 / 1,000 = 376
        (45_600, (4_000, 900, 24, 4, 250), 5, 256),  # the root of 45,600 / 10,356 is 2.1, of few rows at least 5
        (60_000, (), 7, 256),
        (60_001, (), 8, 256),  # 1,000,000 / 60,001, at most 8
        (150_000, (18_750,), 2, 256),  # 8 rows an id, no more
        (150_000, (18_749,), 7, 1024),  # 1,000,000 / 150,000
        (150_000, (20_000,), 2, 256),  # the root of 150,000 / 40,000 is 1.9; 400,000 / 150,000 = 2.7
        (200_000, (4_000, 900, 24, 4, 250), 5, 1024),  # the root of 200,000 / 10,356 is 4.4
        (300_000, (4_000, 900, 24, 4, 250), 3, 1024),  # the root of 300,000 / 10,356 is 5.4
        (1_600_000, (938_604, 903_867), 1, 2048),  # fewer rows than ids
        (2_000_000, (), 3, 4096),
        (10**9, (1000,), 3, 4096),
        (1600, (1100, 8, 5), 8, 64),  # 200 updates of 64 rows
        (1, (5,), 40, 64),
    ],
)
def test_the_rule_by_hand(rows, num_ids, epochs, batch_size):
    found = settle(TrainSettings(), rows, num_ids)
    assert (found.epochs, found.batch_size) == (epochs, batch_size)


def test_the_learning_rate_grows_with_the_root_of_the_batch():
    lrs = [settle(TrainSettings(batch_size=size), 10_000, ()).lr_max for size in (16, 64, 256, 1024, 4096)]
    assert lrs == [0.0075, 0.015, 0.03, 0.04, 0.04]
    assert settle(TrainSettings(optimizer="adamw", batch_size=64), 10_000, ()).lr_max == 0.0015


@pytest.mark.parametrize(
    ("rows", "num_ids", "given", "decay"),
    [
        (60_000, (100,), {}, None),
        (60_001, (100,), {}, 0.98),
        (60_001, (), {}, 0.98),
        (60_001, (100,), {"ema_decay": None}, None),
        (60_001, (100,), {"ema_decay": 0.5}, 0.5),
        (1_000_000, (2 * 2048 + 8, 2 * 2048 - 8), {"batch_size": 2048}, 0.98),  # two rows of tables a row that is read
        (1_000_000, (2 * 2048 + 8, 2 * 2048 - 7), {"batch_size": 2048}, None),
        (75_000, (), {"epochs": 2, "batch_size": 1000}, 0.98),  # 150 steps
        (75_000, (), {"epochs": 2, "batch_size": 1001}, None),
        (1_000_000, (100,), {"negatives": {}}, None),
        (1_000_000, (100,), {"start_from": "current"}, None),
        (1_000_000, (100,), {"codistill": {}}, None),
    ],
)
def test_many_rows_of_small_tables_get_an_average_of_weights(rows, num_ids, given, decay):
    assert settle(TrainSettings(**given), rows, num_ids).ema_decay == decay


@pytest.mark.parametrize(("rows", "decay"), [(800, None), (801, 0.98)])
def test_tabm_gets_an_average_of_few_rows(rows, decay):
    rule = rule_of(TabM, ModelInputs((100,), 2))
    assert settle(TrainSettings(epochs=15), rows, (100,), **rule).ema_decay == decay
    assert settle(TrainSettings(epochs=15), rows, (100,), warm=True, **rule).ema_decay is None


def test_a_training_that_goes_on_gets_no_average():
    assert settle(TrainSettings(), 1_000_000, (100,)).ema_decay == 0.98
    assert settle(TrainSettings(), 1_000_000, (100,), warm=True).ema_decay is None


def test_an_average_by_the_rule_is_said():
    said = rule_text(TrainSettings(), settle(TrainSettings(), 100_000, (10,)), 100_000)
    assert "ema_decay 0.98" in said
    assert "ema" not in rule_text(TrainSettings(), settle(TrainSettings(), 10_000, (10,)), 10_000)


@settings(max_examples=examples(20))
@given(
    rows=st.integers(0, 10**10),
    num_ids=st.lists(st.integers(1, 10**9), max_size=5),
    given_settings=st.fixed_dictionaries(
        {},
        optional={
            "epochs": st.integers(1, 99),
            "batch_size": st.integers(64, 10**6),
            "lr_max": st.floats(1e-6, 1.0),
            "optimizer": st.sampled_from(["lamb", "adamw", "cowclip"]),
            "accumulate_steps": st.integers(1, 32),
        },
    ),
)
def test_what_is_set_stays_and_the_rest_is_whole(rows, num_ids, given_settings):
    own = TrainSettings(**given_settings)
    found = settle(own, rows, num_ids)
    assert found.model_dump() | given_settings == found.model_dump()
    assert found.batch_size >= 2 * own.accumulate_steps
    assert settle(found, 7, ()) == found  # nothing is left to the rule


ENTITIES = {"user": EntityColumns(0, (0,)), "item": EntityColumns(1, (1,))}


@pytest.mark.parametrize(
    ("entities", "given", "expected"),
    [
        (ENTITIES, {}, 5.0),
        ({}, {}, 1.0),
        (ENTITIES, {"optimizer_settings": {"table_lr": 0.02}}, 2.0),
        (ENTITIES, {"optimizer": "cowclip"}, 1.0),
        (ENTITIES, {"optimizer": "adamw", "optimizer_settings": {"rowwise": True}}, 1.0),
    ],
)
def test_vectors_of_fm_have_a_rate_of_their_own_where_rows_are_of_users_and_items(entities, given, expected):
    model = FactorizationMachine(ModelInputs((10, 9), 0, **entities), FactorizationMachine.Settings())
    chosen = settle(TrainSettings(epochs=1, batch_size=4, lr_max=0.01, **given), 100, (10, 9))
    optimizer, _ = optimizer_of(model, chosen)
    rates = {
        table: group.get("lr_scale", 1.0)
        for group in optimizer.param_groups for table in group["params"] if table is model.fields.tables.tables[0]
    }  # fmt: skip
    assert list(rates.values()) == [pytest.approx(expected)]


def test_a_model_has_a_share_of_the_rate_where_the_rule_gives_it():
    own, set_by_hand = TrainSettings(batch_size=64), TrainSettings(batch_size=64, lr_max=0.02)
    assert settle(own, 10_000, (), rate=0.1).lr_max == pytest.approx(0.0015)
    assert settle(set_by_hand, 10_000, (), rate=0.1).lr_max == 0.02
    adamw = TrainSettings(optimizer="adamw", batch_size=64)
    assert settle(adamw, 10_000, (), rate=0.1).lr_max == settle(adamw, 10_000, ()).lr_max


@pytest.mark.parametrize(("kind", "rows"), [("fm", 6_000), ("dcn", 4_000)])
def test_products_of_many_floats_are_learnt_without_any_setting(tmp_path, kind, rows):
    """At the rule's whole rate `dcn` ended at three times the log loss of the constant."""
    random = torch.Generator().manual_seed(3)
    schema = TensorSchema((IdColumn("a", 40),), tuple(f"x{place}" for place in range(25)), (Target("y", "binary"),))
    levels = torch.randn(40, generator=random)

    def table(rows):
        ids, floats = torch.randint(1, 40, (rows,), generator=random), torch.randn(25, rows, generator=random)
        logit = 0.7 * levels[ids] + torch.sin(2 * floats[0]) + 0.8 * floats[1] * floats[2] - 0.5 * floats[3].abs() - 1
        labels = (torch.rand(rows, generator=random) < logit.sigmoid()).float()
        return PackedTable.from_columns(schema, [ids.int()], list(floats), [labels]), floats

    (train, floats), (valid, _) = table(rows), table(rows // 2)
    edges = torch.quantile(floats, torch.linspace(0, 1, 49), dim=1).T.tolist()
    inputs = ModelInputs(id_sizes(schema), 25, 1, float_edges=tuple(map(tuple, edges)))
    torch.manual_seed(1)
    model = ModelSpec(kind, inputs, model_class(kind).Settings()).build()
    settings = TrainSettings()
    trained = train_model(model, train, valid, LOSS, settings, seed=1, device="cpu", folder=tmp_path)
    share = float(valid.unpack(valid.words).targets[0].mean())
    constant = -share * math.log(share) - (1 - share) * math.log(1 - share)
    assert trained.curve[-1]["valid_loss"] < 0.95 * constant  # the true probabilities: .82


def users_and_items(rows: int, seed: int) -> PackedTable:
    """1,000 users choose of 900 items by what both are; two drawn negatives a choice."""
    draw = torch.Generator().manual_seed(7)
    tastes, kinds = torch.randn(1000, 4, generator=draw), torch.randn(900, 4, generator=draw)
    draw.manual_seed(seed)
    user = torch.randint(1000, (rows,), generator=draw)
    scores = 2 * tastes[user] @ kinds.T - torch.empty(rows, 900).exponential_(generator=draw).log()
    item = torch.cat([scores.argmax(1), torch.randint(900, (2 * rows,), generator=draw)])
    schema = TensorSchema((IdColumn("user", 1000), IdColumn("item", 900)), (), (Target("chosen", "binary"),))
    labels = (torch.arange(3 * rows) < rows).float()
    return PackedTable.from_columns(schema, [user.repeat(3).int(), item.int()], [], [labels])


def test_fm_learns_pairs_of_users_and_items_without_any_setting(tmp_path):
    """Q5: at the rate of other tables its vectors hardly left 0, and the log loss was .402."""
    train, test = users_and_items(8000, 1), users_and_items(2000, 2)
    inputs = ModelInputs((1000, 900), 0, **ENTITIES)
    torch.manual_seed(0)
    model = FactorizationMachine(inputs, FactorizationMachine.Settings())
    train_model(model, train, test, LOSS, TrainSettings(), seed=1, device="cpu", folder=tmp_path)
    assert table_loss(model, test, LOSS, "cpu") < 0.36


def test_the_rule_is_told_in_words_and_only_where_it_was_asked():
    own = TrainSettings(epochs=3)
    found = settle(own, 26_000, ())
    assert rule_text(own, found, 26_000).startswith("Training by default: batch_size 64, lr_max 0.0")
    assert rule_text(found, found, 26_000) == ""


@pytest.mark.parametrize(
    ("kind", "model", "share"),
    [
        ("binary", TabularModel, 0.75),
        ("multiclass", TabularModel, 0.75),
        ("regression", TabularModel, 0.75),
        ("binary", LogisticRegression, 0.9),
    ],
)
def test_a_model_without_any_setting_is_better_than_the_constant(tmp_path, kind, model, share):
    """U1. 600 rows; the target of the regression is far from 0 (M1)."""
    random = torch.Generator().manual_seed(4)
    target = Target("y", kind, 3) if kind == "multiclass" else Target("y", kind)
    schema = TensorSchema((IdColumn("a", 9),), ("x", "z"), (target,))

    def table(rows):
        ids, floats = torch.randint(1, 9, (rows,), generator=random), torch.randn(2, rows, generator=random)
        value = floats[0] + 0.5 * (ids % 3) - 0.5 + 0.3 * torch.randn(rows, generator=random)
        labels = {"binary": (value > 0).float(), "multiclass": value.round().clamp(-1, 1).int() + 1}
        return PackedTable.from_columns(schema, [ids.int()], list(floats), [labels.get(kind, 2000 + 500 * value)])

    train, valid = table(600), table(500)
    loss = TargetLoss([(target.task, target.num_outputs)])
    torch.manual_seed(1)
    built = model(ModelInputs(id_sizes(schema), 2, target.num_outputs), model.Settings())
    trained = train_model(built, train, valid, loss, TrainSettings(), seed=1, device="cpu", folder=tmp_path)
    labels = valid.unpack(valid.words).targets[0]
    if kind == "regression":
        constant = 1.0  # in standard deviations
    else:
        shares = torch.bincount(labels.long()) / len(labels)
        constant = float(-(shares * shares.log()).sum())
    assert min(point["valid_loss"] for point in trained.curve if "valid_loss" in point) < share * constant


def test_whole_settings_leave_nothing_out():
    with pytest.raises(ValueError, match="epochs"):
        WholeTrainSettings(batch_size=64, lr_max=0.1)


def test_a_run_says_what_it_took_and_is_the_run_of_the_same_numbers(tiny, caplog):
    caplog.set_level("INFO")
    run = tiny.train("train.epochs=1", "train.batch_size=null", "train.lr_max=null")
    found, rows = run.summary["config"]["train"], run.summary["rows_by_split"]["train"]
    sizes = [column.num_ids for column in run.bundle().preprocessor.tensor_schema.ids]
    wanted = settle(TrainSettings(epochs=1), rows, sizes)
    assert (found["epochs"], found["batch_size"], found["lr_max"]) == (1, wanted.batch_size, wanted.lr_max)
    (told,) = [note for note in run.summary["notes"] if note.startswith("Training by default")]
    assert told == rule_text(TrainSettings(epochs=1), wanted, rows)
    assert told in caplog.text
    assert told in (run.path / "report.html").read_text()
    written = [f"train.batch_size={wanted.batch_size}", f"train.lr_max={wanted.lr_max}"]
    assert "train" in tiny.train("train.epochs=1", *written).skipped


@settings(max_examples=examples(50))
@given(rows=st.integers(130, 10**6), size=st.one_of(st.none(), st.integers(64, 20_000)))
def test_a_warm_start_trains_on_all_rows_but_a_hundredth(rows, size):
    """Of 15,000 new rows in batches of 8,192 it saw 8,192, and the night after took all for known."""
    asked = TrainSettings(batch_size=size)
    found = settle(asked, rows, (9,), warm=True)
    cold = settle(asked, rows, (9,)).batch_size if size is not None else found.batch_size
    assert found.batch_size <= cold
    batch = min(found.batch_size, rows)
    assert rows // batch * batch >= 0.99 * rows - rows // batch
    if rows % min(cold, rows) <= 0.01 * rows:
        assert found.batch_size == cold
    assert ("so that all of the" in rule_text(asked, found, rows)) == (found.batch_size != cold)


def test_batches_of_a_warm_start_by_hand():
    found = [settle(TrainSettings(batch_size=8192), rows, (9,), warm=True).batch_size for rows in (15_000, 8192, 900)]
    assert found == [7500, 8192, 8192]  # of fewer rows than a batch all are one
    assert settle(TrainSettings(batch_size=8192), 15_000, (9,)).batch_size == 8192


@pytest.mark.parametrize(
    ("rows", "size", "epochs", "steps"),
    [(15_000, 8192, 1, 2), (15_000, 8192, 10, None), (9, 64, 1, 1), (9000, 64, 1, None)],
)
def test_a_warm_start_of_few_steps_is_told(rows, size, epochs, steps):
    """A night of one step had a twenty-fifth of the rate, and its model was that of the night before."""
    settled = settle(TrainSettings(batch_size=size, epochs=epochs), rows, (9,), warm=True)
    found = few_steps_text(settled, rows)
    assert found.startswith(f"Only {steps} step(s) of") if steps else not found
    assert few_steps_text(settled.model_copy(update={"epochs": 0}), rows) == ""


def test_a_batch_that_the_rule_took_is_not_told_to_be_left_out():
    settled = settle(TrainSettings(epochs=3), 66, (9,), warm=True)
    assert few_steps_text(settled, 66).endswith(
        "train.batch_size, or let nights train more epochs (nightly.warm_epochs)."
    )
    settled = settle(TrainSettings(batch_size=512, epochs=3), 1000, (9,), warm=True)
    assert few_steps_text(settled, 1000).endswith("Set a smaller train.batch_size, or leave it out.")
