"""What a checkpoint refuses; that a resumed run is bit-equal is tested with the loop (test_train.py)."""

import contextlib

import pytest
import torch

from gigabatch.features.schema import IdColumn, Target, TensorSchema
from gigabatch.loaders.batches.dataset import BatchDataset
from gigabatch.loaders.batches.loader import BatchLoader
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.optimizers.ema import WeightAverage
from gigabatch.models.optimizers.precision import Precision
from gigabatch.models.optimizers.registry import build_optimizer
from gigabatch.models.tabular.tabular import TabularModel, TabularSettings
from gigabatch.pipeline.store.keys import BLAKE2B, file_checksum
from gigabatch.pipeline.training.checkpoint import (
    Progress,
    TrainingError,
    TrainingState,
    checksum_file,
    load_checkpoint,
    put_random_states,
    random_states,
    save_checkpoint,
)


def make_state(precision: torch.dtype = torch.float32, ema_decay: float | None = None) -> TrainingState:
    schema = TensorSchema((IdColumn("a", 4),), ("x",), (Target("label", "binary"),))
    table = PackedTable(torch.zeros(10, schema.num_words, dtype=torch.int32), schema)
    model = TabularModel(ModelInputs((4,), 1), TabularSettings(layers=(3,)))
    average = None if ema_decay is None else WeightAverage(model, ema_decay)
    optimizer, loader = build_optimizer(model, "lamb", lr=0.1), BatchLoader(BatchDataset(table, 5))
    return TrainingState(model, optimizer, loader, torch.zeros(2), Precision(precision, "test"), average)


def test_everything_comes_back(tmp_path):
    saved, other = make_state(ema_decay=0.9), make_state(ema_decay=0.9)
    saved.losses.copy_(torch.tensor([0.5, 0.25]))
    saved.average.begin_update()
    saved.average.update()
    next(iter(saved.loader))
    done = Progress(3, [{"step": 1}], 0.5, 0, {"w": torch.ones(2)})
    save_checkpoint(tmp_path / "checkpoint.pt", saved, done)
    expected = torch.rand(3)
    found = load_checkpoint(tmp_path / "checkpoint.pt", other)
    assert torch.equal(torch.rand(3), expected)  # the random state too
    assert torch.equal(found.best_weights.pop("w"), torch.ones(2))
    assert found == Progress(3, [{"step": 1}], 0.5, 0, {})
    assert torch.equal(other.losses, saved.losses)
    assert other.loader.state_dict() == saved.loader.state_dict()
    assert other.average.num_updates == 1
    for one, two in ((saved.model, other.model), (saved.average.model, other.average.model)):
        assert all(torch.equal(value, two.state_dict()[name]) for name, value in one.state_dict().items())
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint.pt", "checkpoint.pt.blake2b"}


def test_every_rank_takes_the_random_state_of_the_gpu_that_the_first_trains_on(monkeypatch):
    """The first rank's process trains on GPU 0; GPU 1's generator there is nobody's. On a machine of one GPU, or as
    rank 1 on GPU 1, the training goes on with the numbers that come next on the first."""
    used, fresh = torch.tensor([7], dtype=torch.uint8), torch.tensor([0], dtype=torch.uint8)
    states, process = {0: used, 1: fresh}, {"gpu": 0}

    def place(device):
        return process["gpu"] if device.index is None else device.index

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: states[place(device)])
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: states.update({place(device): state}))
    saved = random_states(torch.device("cuda"))
    states.clear()
    process["gpu"] = 1
    put_random_states(saved, torch.device("cuda"))
    assert list(states) == [1]
    assert torch.equal(states[1], used)
    assert random_states(torch.device("cpu"))["random_cuda"] is None


def test_a_checkpoint_of_another_precision_says_how_to_go_on(tmp_path):
    save_checkpoint(tmp_path / "checkpoint.pt", make_state(torch.bfloat16), Progress())
    with pytest.raises(TrainingError, match=r"ran in bfloat16.*go on in float32\. Set train\.precision=bfloat16, or"):
        load_checkpoint(tmp_path / "checkpoint.pt", make_state())


@pytest.mark.parametrize(("saved", "found", "word"), [(0.9, None, "with"), (None, 0.9, "without")])
def test_a_checkpoint_with_an_average_and_a_run_without_do_not_fit(tmp_path, saved, found, word):
    save_checkpoint(tmp_path / "checkpoint.pt", make_state(ema_decay=saved), Progress())
    with pytest.raises(TrainingError, match=rf"saved {word} train\.ema_decay"):
        load_checkpoint(tmp_path / "checkpoint.pt", make_state(ema_decay=found))


def test_every_flipped_bit_is_found(tmp_path):
    """R6: torch.load checks no CRC, and training went on with other weights under the same key."""
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, make_state(), Progress(best_weights={"w": torch.ones(1000)}))
    content = path.read_bytes()
    at = content.index(torch.ones(1000).numpy().tobytes()) + 2000  # a weight: the file still reads as one
    damaged = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
    path.write_bytes(damaged)
    assert not torch.equal(torch.load(path)["progress"]["best_weights"]["w"], torch.ones(1000))  # as it was taken
    with pytest.raises(TrainingError, match=r"checkpoint\.pt: damaged \(its checksum"):
        load_checkpoint(path, make_state())
    path.write_bytes(content)
    load_checkpoint(path, make_state())
    checksum_file(path).unlink()
    with pytest.raises(TrainingError, match=r"checkpoint\.pt: damaged"):
        load_checkpoint(path, make_state())


@pytest.mark.parametrize("killed_at", ["the checksum", "the rename"])
def test_a_crash_between_checkpoint_and_checksum_leaves_one_that_is_whole(tmp_path, monkeypatch, killed_at):
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, make_state(), Progress(step=1))

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        if killed_at == "the checksum":
            patched.setattr("gigabatch.pipeline.training.checkpoint.atomic_write", killed)
        else:
            patched.setattr("gigabatch.pipeline.training.checkpoint.replacing", once_then(killed))
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                save_checkpoint(path, make_state(), Progress(step=2))
    assert load_checkpoint(path, make_state()).step == 1
    save_checkpoint(path, make_state(), Progress(step=3))
    assert load_checkpoint(path, make_state()).step == 3


def once_then(killed):
    """`replacing` whose rename does not happen."""

    @contextlib.contextmanager
    def never_renamed(path):
        yield path.with_name("temporary")
        killed()

    return never_renamed


CRAFTED = {
    "a list": [1, 2],
    "nothing": {},
    "no weights": {"precision": "float32", "average": None},
    "other weights": {"precision": "float32", "average": None, "model": {"w": torch.ones(3)}},
    "text for weights": {"precision": "float32", "average": None, "model": "w"},
    "a number": 7,
}


@pytest.mark.parametrize("kind", list(CRAFTED))
def test_a_crafted_checkpoint_is_a_named_error(tmp_path, kind):
    """R6: KeyError, TypeError, RuntimeError."""
    path = tmp_path / "checkpoint.pt"
    torch.save(CRAFTED[kind], path)
    checksum_file(path).write_text(file_checksum(path, BLAKE2B))
    with pytest.raises(TrainingError, match=r"checkpoint\.pt: damaged, or of another run \("):
        load_checkpoint(path, make_state())


@pytest.mark.parametrize("part", ["optimizer", "loader", "losses", "random", "progress"])
@pytest.mark.parametrize("value", [None, {}, {"x": 1}, [1], "text"])
def test_a_checkpoint_with_one_crafted_part_is_a_named_error(tmp_path, part, value):
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, make_state(), Progress())
    torch.save(torch.load(path) | {part: value}, path)
    checksum_file(path).write_text(file_checksum(path, BLAKE2B))
    if part == "progress" and value == {}:
        return  # nothing done yet
    with pytest.raises(TrainingError, match=r"checkpoint\.pt: damaged, or of another run \("):
        load_checkpoint(path, make_state())


def test_a_checkpoint_of_another_number_of_threads_is_taken_and_said_so(tmp_path, caplog):
    """R10: the order in which a BLAS adds depends on them."""
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, make_state(), Progress(step=1))
    load_checkpoint(path, make_state())
    assert not caplog.records
    content = torch.load(path)
    torch.save(content | {"threads": content["threads"] + 1}, path)
    checksum_file(path).write_text(file_checksum(path, BLAKE2B))
    assert load_checkpoint(path, make_state()).step == 1
    assert "the last bits of the weights will be others" in caplog.text


@pytest.mark.parametrize(("saved", "own"), [("abc", "def"), ("abc/member-0", "abc/member-1"), ("", "abc"), ("abc", "")])
def test_a_checkpoint_of_another_run_is_refused(tmp_path, saved, own):
    path, state, other = tmp_path / "checkpoint.pt", make_state(), make_state()
    state.run, other.run = saved, own
    save_checkpoint(path, state, Progress(step=1))
    assert load_checkpoint(path, state).step == 1
    before = {name: value.clone() for name, value in other.model.state_dict().items()}
    with pytest.raises(TrainingError, match=f"saved by another run .{saved or 'without a name'}, this is {own}"):
        load_checkpoint(path, other)
    assert all(torch.equal(value, before[name]) for name, value in other.model.state_dict().items())
