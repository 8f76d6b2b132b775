"""lr-range, tune and profile of runs whose negatives are drawn: they train and evaluate on what a run of them does."""

import json
import math

import numpy as np
import pytest
import torch

from gigabatch.features.synthetic.movielens import write_movielens
from gigabatch.loaders.batches.dataset import BatchDataset
from gigabatch.models.optimizers.noise_scale import NoiseScale
from gigabatch.models.optimizers.schedule import build_schedule
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.lab.experiment import Experiment
from gigabatch.pipeline.lab.profile.step_needs import Rates
from gigabatch.pipeline.lab.profile.step_phases import PHASES_WITH_DRAWS, Laps, PhasedStep, watched_lookup
from gigabatch.pipeline.lab.profile.step_profile import profile_steps
from gigabatch.pipeline.lab.tune import trials as tune_trials
from gigabatch.pipeline.lab.tune.trials import noise_scales, time_steps
from gigabatch.pipeline.lab.tune.tune import Trainer
from gigabatch.pipeline.stages.stages import Encoded, Pipeline
from gigabatch.pipeline.training.negatives import implicit_batches

COPIES = 4  # a positive and three negatives
RATES = Rates(copy=100.0, random=10.0, packed=20.0, packed_words=4, matmul=1000.0, dtype=torch.float32)
SOFTMAX = ["model={kind: two_tower, loss: softmax, layers: [8], vector_dim: 4, embedding_dim: 4}"]
MODELS = {
    "ncf": [],
    "popular": ["train.negatives.kind=popularity"],
    "ncf_softmax": ["train.negatives.kind=popularity", "model.loss=softmax"],
    "two_tower": SOFTMAX,
    "two_tower_bpr": ["model={kind: two_tower, loss: bpr, layers: [8], vector_dim: 4, embedding_dim: 4}"],
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Twenty ratings of each of sixty users, as MovieLens comes, and run.yaml: 1,080 train rows, genres of the item."""
    folder = tmp_path_factory.mktemp("movies")
    write_movielens(folder / "ml", "ml-100k", 60, 80)
    config = {
        "name": "movies", "recipe": "movielens", "device": "cpu", "engine": "pandas", "seed": 3,
        "artifacts": str(folder / "artifacts"), "runs": str(folder / "runs"),
        "features": {"path": str(folder / "ml"), "genres": True},
        "model": {"kind": "ncf", "loss": "bce", "gmf_dim": 4, "mlp_dim": 4, "layers": [8]},
        "train": {
            "negatives": {"per_positive": COPIES - 1}, "epochs": 2, "batch_size": 128, "optimizer": "adamw",
            "optimizer_settings": {"rowwise": True}, "lr_max": 0.02, "schedule": "constant", "precision": "float32",
        },
        "evaluate": {"importance": False},
    }  # fmt: skip
    (folder / "run.yaml").write_text(json.dumps(config))
    return folder


@pytest.fixture(autouse=True)
def _nothing_that_takes_long(monkeypatch):
    monkeypatch.setattr(tune_trials, "NOISE_LARGE", 2)
    monkeypatch.setattr("gigabatch.pipeline.lab.profile.step_profile.measure_rates", lambda *_: RATES)
    monkeypatch.setattr("gigabatch.pipeline.lab.profile.step_profile.WHOLE_STEP_SECONDS", 0.0)


@pytest.fixture(scope="module")
def encoded(home) -> Encoded:
    return Pipeline.from_config(home / "run.yaml").features().encode()


def places(encoded: Encoded) -> tuple[int, int]:
    """Columns of user and item among the ids."""
    names = [column.name for column in encoded.table("train").schema.ids]
    return names.index("user_id"), names.index("item_id")


def pairs_of(encoded: Encoded, split: str) -> list[tuple[int, ...]]:
    return [tuple(row) for row in encoded.table(split).words[:, list(places(encoded))].tolist()]


def rows_of_an_epoch(experiment: Experiment, batch_size: int, seed: int):
    """Batches of the first epoch as the model gets them."""
    batches = experiment.batches(batch_size, seed)
    steps = len(experiment.train) // batch_size
    return [next(batches).rows(experiment.negatives(seed)) for _ in range(steps)]


def test_batches_are_positives_each_with_its_negatives(home, encoded):
    """Counted and looked up in a plain loop: no negative is a known positive, and its genres are the item's own."""
    experiment = Experiment.of_run(home / "run.yaml", [])
    user, item = places(encoded)
    table = encoded.table("train")
    every = table.unpack(table.words)
    genres = dict(zip(every.ids[:, item].tolist(), every.floats.tolist(), strict=True))
    known, seen = set(pairs_of(encoded, "train")), []
    for batch in rows_of_an_epoch(experiment, 128, 3):
        assert batch.num_rows == 128 * COPIES
        for row in range(batch.num_rows):
            pair = int(batch.ids[row, user]), int(batch.ids[row, item])
            positive = row % COPIES == 0
            assert float(batch.targets[0][row]) == positive
            assert (pair in known) == positive
            assert batch.floats[row].tolist() == genres[pair[1]]
            if positive:
                seen.append(pair)
    assert len(seen) == 8 * 128  # whole batches of 1,080 rows
    assert not set(seen) - known


def test_of_a_sample_the_known_pairs_are_the_whole_splits(home, encoded):
    experiment = Experiment.of_run(home / "run.yaml", [], 40)
    assert (len(experiment.train), experiment.num_train_rows) == (40, 1080)
    assert len(experiment.valid) == 40 * COPIES
    assert experiment.valid.words[:, -1].unique(return_counts=True)[1].tolist() == [COPIES] * 40
    known, (user, item) = set(pairs_of(encoded, "train")), places(encoded)
    for batch in rows_of_an_epoch(experiment, 20, 3):
        drawn = batch.ids[batch.targets[0] == 0][:, [user, item]].tolist()
        assert not known & {tuple(pair) for pair in drawn}


@pytest.mark.parametrize("kind", ["popular", "two_tower_bpr"])
def test_a_trial_is_the_training_of_a_run_and_is_evaluated_on_its_valid_rows(home, kind):
    experiment = Experiment.of_run(home / "run.yaml", MODELS[kind])
    trained = experiment.fit(experiment.config.train, experiment.config.seed)
    run = Pipeline.from_config(home / "run.yaml", *MODELS[kind]).train()
    weights = run.bundle().model.state_dict()
    assert all(torch.equal(weights[name], tensor) for name, tensor in trained.model.state_dict().items())
    assert trained.curve == run.curve
    trainer = Trainer(experiment, math.inf)
    assert trainer.metric == "mrr"  # a positive among its negatives, though the schema names no group
    outcome = trainer.train(experiment.config.train, experiment.config.seed)
    assert outcome.metric == run.summary["metrics"]["valid"]["mrr"]
    assert outcome.valid_losses == tuple(point["valid_loss"] for point in run.curve if "valid_loss" in point)


@pytest.mark.parametrize(
    "overrides",
    [MODELS["popular"], ["train.accumulate_steps=3"], SOFTMAX],
    ids=["popular", "pieces", "two_tower"],
)
def test_the_steps_of_lr_range_have_the_losses_of_a_training(home, overrides):
    """An epoch has eight steps, so that a point of the learning curve is the loss of one."""
    artifact = Pipeline.from_config(home / "run.yaml", *overrides).features().encode().fit_model()
    curve = [json.loads(line) for line in (artifact.path / "metrics.jsonl").read_text().splitlines()]
    experiment = Experiment.of_run(home / "run.yaml", overrides)
    settings, seed = experiment.config.train, experiment.config.seed
    model = experiment.new_model(seed).train()
    step, batches = experiment.train_step(model), experiment.batches(128, seed)
    schedule = build_schedule("constant", settings.lr_max, 16)
    losses = []
    for number in range(16):
        found = next(batches)
        losses.append(float(step(found.batch, *schedule.at(number), found.place)))
    assert losses == [point["train_loss"] for point in curve]


def test_the_noise_scale_is_in_positives_and_of_rows_with_their_negatives(home, encoded, monkeypatch):
    experiment = Experiment.of_run(home / "run.yaml", ["train.batch_size=64"])
    losses, expected = [], []

    def measure(model, batch_loss, batches, **counts):
        found = next(batches)
        assert found.num_rows == 64
        losses.append(float(batch_loss(found).detach()))
        train, settings = encoded.table("train"), experiment.config.train.negatives
        negatives = implicit_batches(encoded.preprocessor, experiment.spec.inputs, train, settings, 4, "cpu")
        negatives.begin(0, 64 * (len(losses) - 1))
        rows = negatives(BatchDataset(train, 64, seed=4, drop_last=True)[len(losses) - 1])
        assert rows.num_rows == 64 * COPIES
        with torch.no_grad():
            logits = model(rows.ids, rows.floats)[:, 0].double().numpy()
        targets = rows.targets[0].numpy()
        expected.append(np.mean(np.logaddexp(0, logits) - targets * logits))
        return NoiseScale(1.0, 10.0)

    monkeypatch.setattr(tune_trials, "measure_noise_scale", measure)
    points = noise_scales(experiment, experiment.config.train, 600)
    assert [point.step for point in points] == [4, 8, 16]  # of 16 steps
    assert losses == pytest.approx(expected, rel=1e-5)


def test_tune_counts_positives_and_decides_by_the_metric_of_a_run(home, capsys):
    own = ["train.batch_size=64", "train.epochs=1", *SOFTMAX]
    arguments = ["--seeds", "2", "--seconds", "600", "--max-batch", "128", "--tolerance", "0.9"]
    assert main(["tune", "--config", str(home / "run.yaml"), *own, *arguments]) == 0
    out = capsys.readouterr().out
    found = json.loads((home / "runs" / "movies" / "tune.json").read_text())
    assert [time["batch_size"] for time in found["sweep"]["times"]] == [64, 128]
    assert (found["rows"], found["rows_of_run"], found["negatives_per_positive"]) == (1080, 1080, COPIES - 1)
    assert found["metric"] == "mrr"
    assert len(found["noise"]) == 3
    assert "all 1,080 train rows, positives with 3 drawn negatives each (batches count positives)" in out
    if found["candidates"]:  # a loaded machine may not see that 128 positives a step are faster
        (trial,) = found["trials"]
        run = Pipeline.from_config(home / "run.yaml", *own).train()
        assert trial["small"][0] == run.summary["metrics"]["valid"]["mrr"]


@pytest.mark.parametrize(("kind", "rowwise"), [("ncf", True), ("popular", False), ("ncf_softmax", True)])
def test_the_profiled_steps_are_those_of_training(home, kind, rowwise):
    """Bit for bit the weights that `TrainStep` gives, which training calls."""
    dense = ["train.optimizer=adamw", "train.optimizer_settings={rowwise: false}"]
    experiment = Experiment.of_run(home / "run.yaml", [*MODELS[kind], *([] if rowwise else dense)])
    settings, seed = experiment.config.train, experiment.config.seed
    plain, phased = experiment.new_model(seed).train(), experiment.new_model(seed).train()
    train_step, batches = experiment.train_step(plain), experiment.batches(128, seed)
    for _ in range(3):
        found = next(batches)
        train_step(found.batch, settings.lr_max, 0.9, found.place)
    laps = Laps("cpu", PHASES_WITH_DRAWS)
    step = PhasedStep(experiment, phased, laps)
    dataset = BatchDataset(experiment.train, 128, seed=seed, drop_last=True)
    with watched_lookup(laps, "cpu"):
        for index in range(3):
            step(dataset, index)
    assert step.dense_tables != rowwise
    expected = plain.state_dict()
    assert all(torch.equal(expected[name], tensor) for name, tensor in phased.state_dict().items())


def test_the_profile_has_a_line_for_drawing_and_counts_what_a_batch_touches(home, encoded):
    experiment = Experiment.of_run(home / "run.yaml", ["train.batch_size=64"])
    found = profile_steps(experiment, 4)
    assert list(found.seconds) == list(PHASES_WITH_DRAWS)
    assert all(seconds > 0 for seconds in found.seconds.values()), found.seconds
    assert [row["phase"] for row in found.rows()] == [*PHASES_WITH_DRAWS, "sum"]
    assert (found.batch_size, found.num_rows) == (64, 64 * COPIES)
    user, item = places(encoded)
    lists = {}
    for who, what in set(pairs_of(encoded, "train")):
        lists.setdefault(who, []).append(what)
    touched, rounds = {user: [], item: []}, []
    for batch in rows_of_an_epoch(experiment, 64, 3)[3:7]:
        for column, counts in touched.items():
            counts.append(len({int(value) for value in batch.ids[:, column]}))
        rounds += [math.ceil(math.log2(len(lists[who]) + 1)) for who in batch.ids[::COPIES, user].tolist()]
    assert found.asked.unique == pytest.approx([np.mean(touched[user]), np.mean(touched[item])])
    assert found.draws.comparisons == pytest.approx(np.mean(rounds))
    assert found.draws.items == pytest.approx(np.mean(touched[item]))
    assert (found.draws.per_positive, found.draws.knows, found.draws.weighted) == (COPIES - 1, True, False)
    assert found.draws.item_words == 1 + len(experiment.train.schema.floats)


def test_the_profile_command_says_what_is_drawn(home, capsys):
    command = ["profile", "--config", str(home / "run.yaml"), "--steps", "2", "train.batch_size=64"]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "a step of 256 rows" in out
    assert "negatives     192 drawn for 64 positives (train.batch_size), each compared with " in out
    saved = json.loads((home / "runs" / "movies" / "profile.json").read_text())
    assert (saved["batch_size"], saved["rows"], saved["negatives"]["per_positive"]) == (64, 256, 3)
    assert [row["phase"] for row in saved["phases"]] == [*PHASES_WITH_DRAWS, "sum"]
    assert main([*command, "train.negatives.exclude_known=false"]) == 0
    assert "192 drawn for 64 positives (train.batch_size), none left out as known" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "overrides", "message"),
    [
        (
            "lr-range",
            ["train.batch_size=1081"],
            "a batch of 1,081 rows is larger than the train split, which has 1,080",
        ),
        ("lr-range", ["train.accumulate_steps=100"], "100 pieces of a batch of 128 rows have fewer than 2 rows"),
        ("profile", ["train.batch_size=136"], "1,080 train rows are fewer than 8 batches of 136"),
        ("profile", SOFTMAX, "known of model.kind=tabular and ncf, and this run's is two_tower"),
        ("lr-range", ["model={kind: gplvmf}"], "not from drawn negatives (train.negatives); choose another model"),
        ("lr-range", ["features.task=rating"], "train.negatives: every row has to be a positive"),
    ],
)
def test_what_cannot_be_tried_is_one_line(home, capsys, command, overrides, message):
    assert main([command, "--config", str(home / "run.yaml"), *overrides]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_the_tables_of_a_seed_are_made_once_for_all_batch_sizes(home, monkeypatch):
    """They take a while and memory, which would be measured along with each batch size's own."""
    made = []

    def counted(*arguments, **named):
        made.append(arguments[4])  # the seed
        return implicit_batches(*arguments, **named)

    monkeypatch.setattr("gigabatch.pipeline.lab.experiment.implicit_batches", counted)
    experiment = Experiment.of_run(home / "run.yaml", [])
    for size in (32, 64, 128):
        time_steps(experiment, size, seconds=0.0)
    assert made == [3]


def test_drawn_negatives_on_any_device(home, any_device):
    experiment = Experiment.of_run(home / "run.yaml", [f"device={any_device}", "train.batch_size=64"])
    found = profile_steps(experiment, 4)
    assert all(seconds > 0 for seconds in found.seconds.values()), found.seconds
    graphed = experiment.fit(experiment.config.train, 3)
    eager = experiment.fit(experiment.with_train_settings(cuda_graph="off"), 3)
    weights = eager.model.state_dict()
    assert all(torch.equal(weights[name], tensor) for name, tensor in graphed.model.state_dict().items())
