"""Groups that codistil: their rows, what they leave each other, groups that die, come late or are of another kind."""

import json
import logging
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from gigabatch.features.schema import IdColumn, Target, TensorSchema
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.models.inputs import EntityColumns, ModelInputs
from gigabatch.models.losses import TargetLoss
from gigabatch.models.parallel.ranks import Ranks
from gigabatch.models.shelf import model_class
from gigabatch.pipeline.config.config import CodistillSettings, TrainSettings, WholeTrainSettings
from gigabatch.pipeline.training.checkpoint import TrainingError
from gigabatch.pipeline.training.codistill import (
    Codistillation,
    header_of,
    require_can_codistill,
    seed_of,
    share_rows,
)
from gigabatch.pipeline.training.train import train_model
from tests.models.parallel.together import together

NUM_IDS = (5, 400)
TEAM, TABLE = {"model": "a"}, "fields.tables.tables.1"
STEPS = 16  # of a training: two epochs of 8


def inputs() -> ModelInputs:
    return ModelInputs(NUM_IDS, 2, 1, user=EntityColumns(0, (0,), ()), item=EntityColumns(1, (1,), ()))


def model_of(seed: int, kind: str = "lr", **settings):
    torch.manual_seed(seed)
    return model_class(kind)(inputs(), model_class(kind).Settings(**settings))


def table(rows: int, seed: int) -> PackedTable:
    random = torch.Generator().manual_seed(seed)
    ids = [torch.randint(size, (rows,), generator=random, dtype=torch.int32) for size in NUM_IDS]
    floats = list(torch.randn(2, rows, generator=random))
    label = (2 * floats[0] + ids[0] % 3 + torch.randn(rows, generator=random) > 1).float()
    columns = tuple(IdColumn(f"id{i}", n) for i, n in enumerate(NUM_IDS))
    return PackedTable.from_columns(TensorSchema(columns, ("a", "b"), (Target("y", "binary"),)), ids, floats, [label])


class Crash(Exception):
    pass


def train(folder: Path, group: int, shared: Path | None, stop_at: int = -1, ranks: Ranks | None = None,
          kind: str = "lr", **settings):  # fmt: skip
    """Group `group` of two on rows of its own; shared None: without codistillation."""
    os.fsync = lambda handle: None
    asked = CodistillSettings(**{"group": group, "burn_in_steps": 4, "every_steps": 2} | settings)
    options = TrainSettings(epochs=2, batch_size=32, lr_max=0.05, checkpoint_every_steps=3, weight_decay=0.0)
    folder.mkdir(exist_ok=True)

    def stop(step: int) -> None:
        if step == stop_at:
            raise Crash

    try:
        return train_model(
            model_of(group, kind), table(256, group), table(100, 9), TargetLoss([("binary", 1)]), options, seed=group,
            device="cpu", folder=folder, after_step=stop, ranks=ranks,
            codistillation=None if shared is None else Codistillation(asked, shared, TEAM),
        )  # fmt: skip
    except Crash:
        return None


def same(one, other) -> bool:
    return all(torch.equal(value, other.model.state_dict()[name]) for name, value in one.model.state_dict().items())


def test_every_row_is_of_one_group_and_groups_begin_apart():
    shares = [share_rows(10_000, CodistillSettings(groups=3, group=group), seed=5) for group in range(3)]
    assert np.array_equal(np.sort(np.concatenate(shares)), np.arange(10_000))
    assert all(3000 < len(share) < 3700 and (np.diff(share) > 0).all() for share in shares)
    assert not np.array_equal(shares[0], share_rows(10_000, CodistillSettings(groups=3), seed=6))
    assert len(share_rows(0, CodistillSettings(), seed=1)) == 0
    seeds = [seed_of(7, CodistillSettings(groups=3, group=group)) for group in range(3)]
    assert seeds[0] == 7 == seed_of(7, None)
    assert len(set(seeds)) == 3
    assert all(0 <= seed < 1 << 63 for seed in seeds)


class Exchange:
    """Two groups whose weights a test moves by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.models = [model_of(seed, "fm") for seed in (0, 1)]
        self.ranks = [Ranks(), Ranks()]
        self.groups = [self.life(group) for group in (0, 1)]

    def life(self, group: int) -> Codistillation:
        settings = CodistillSettings(group=group, burn_in_steps=0, every_steps=1)
        found = Codistillation(settings, self.folder, TEAM)
        found.begin(self.models[group], self.ranks[group], 100)
        return found

    def table(self, group: int) -> torch.Tensor:
        return self.models[group].state_dict()[TABLE]

    def require_taken(self) -> None:
        """What group 0 has of group 1 is what group 1 has."""
        taken = self.groups[0].peers._models[1].state_dict()
        assert all(torch.equal(taken[name], value) for name, value in self.models[1].state_dict().items())

    def kinds(self, group: int) -> list[str]:
        return [path.stem.rpartition("-")[2] for path in sorted(self.folder.glob(f"group-{group}-*"))]


def test_only_rows_that_have_moved_travel_and_whoever_comes_late_has_all(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    both = Exchange(tmp_path)
    zero, one = both.groups
    one.before_step(0)
    zero.before_step(0)
    both.require_taken()
    written = [path.stat().st_size for path in tmp_path.glob("group-1-*")]
    for step, rows in enumerate(([3, 7], [7, 399], []), 1):
        both.table(1)[rows] += 1.0
        one.before_step(step)
        (path,) = tmp_path.glob(f"group-1-{step + 1:08d}-*")
        written.append(path.stat().st_size)
        assert load_file(path)[f"{TABLE}|rows"].tolist() == rows
    assert max(written[1:]) < written[0] / 2
    assert both.kinds(1) == ["whole", "rows", "rows", "rows"]
    zero.before_step(1)  # three files at once
    both.require_taken()
    assert zero.told(1) == {"1": {"step": 3, "age": -2}}
    assert sum(both.ranks[1].traffic.bytes.values()) == sum(written)

    for step in range(4, 30):  # rows add up to a whole one, and what came before it goes
        both.table(1)[step] -= 1.0
        one.before_step(step)
        zero.before_step(step)
        both.require_taken()
    assert both.kinds(1)[0] == "whole"
    assert len(both.kinds(1)) < 30
    late = both.groups[0] = both.life(0)
    late.before_step(40)
    both.require_taken()
    assert late.told(40) == {"1": {"step": 29, "age": 11}}
    assert not list(tmp_path.glob(".*")), "nothing half written stays"


def test_a_group_that_begins_again_is_read_from_its_whole_model_on(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    both = Exchange(tmp_path)
    for step in range(3):
        both.table(1)[step] += 1
        both.groups[1].before_step(step)
        both.groups[0].before_step(step)
    for path in tmp_path.glob("group-1-*"):  # as after `gigabatch gc`: numbers begin anew
        path.unlink()
    both.table(1)[:] = 5.0
    both.groups[1] = both.life(1)
    both.groups[1].before_step(0)
    both.table(1)[8] = 2.0
    both.groups[1].before_step(1)
    both.groups[0].before_step(3)
    both.require_taken()


def test_a_file_that_cannot_be_read_leaves_the_weights_from_before(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    both = Exchange(tmp_path)
    both.groups[1].before_step(0)
    both.groups[0].before_step(0)
    before = {name: value.clone() for name, value in both.models[1].state_dict().items()}
    both.table(1)[3] += 1
    both.groups[1].before_step(1)
    (path,) = tmp_path.glob("group-1-*rows*")
    content = path.read_bytes()
    path.write_bytes(content[:-9])
    both.groups[0].before_step(1)
    both.groups[0].before_step(2)
    assert sum("cannot be read" in record.message for record in caplog.records) == 1
    taken = both.groups[0].peers._models[1].state_dict()
    assert all(torch.equal(taken[name], value) for name, value in before.items())
    path.write_bytes(content)
    both.groups[0].before_step(3)
    both.require_taken()


def test_a_file_of_another_training_is_refused_by_what_is_other(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    both = Exchange(tmp_path)
    both.groups[1].team = {"model": "b"}
    both.groups[1].before_step(0)
    with pytest.raises(TrainingError, match=r"group-1-.* is of a training with other model\. Give all groups one"):
        both.groups[0].before_step(0)


def test_a_peer_that_has_diverged_teaches_by_its_last_finite_weights(tmp_path, monkeypatch, caplog):
    """Its NaN went into the loss of every other group."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    both = Exchange(tmp_path)
    both.groups[1].before_step(0)
    both.groups[0].before_step(0)
    before = {name: value.clone() for name, value in both.groups[0].peers._models[1].state_dict().items()}
    with torch.no_grad():
        both.table(1)[3] = float("nan")
    both.groups[1].before_step(1)
    both.groups[0].before_step(1)
    assert "cannot be read (its weights are not finite: the group has diverged)" in caplog.text
    after = both.groups[0].peers._models[1].state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert both.groups[0].steps == {1: 0}


def test_a_group_alone_trains_as_ever_and_says_that_no_peer_came(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        found = train(tmp_path / "a", 0, tmp_path / "shared", kind="fm", every_steps=4)
    assert same(found, train(tmp_path / "b", 0, None, kind="fm"))
    assert "group 1 has never come" in caplog.text
    assert found.curve[-1]["peers"] == {"1": None}
    lines = [json.loads(line) for line in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()]
    sent = sum(sum(line.get("sent_bytes", {}).values()) for line in lines)
    (last,) = (path for path in (tmp_path / "shared").iterdir() if header_of(path.read_bytes())["step"] == str(STEPS))
    kept = sum(path.stat().st_size for path in (tmp_path / "shared").iterdir()) - last.stat().st_size
    assert sent == kept > 0  # the last one is written after the last epoch's line


def test_a_dead_group_teaches_by_its_last_weights_and_goes_on_later(tmp_path):
    shared = tmp_path / "shared"
    assert train(tmp_path / "one", 1, shared, stop_at=7) is None  # dies; its last file has 6 steps
    zero = train(tmp_path / "zero", 0, shared)
    assert zero.steps == STEPS
    assert zero.curve[-1]["peers"] == {"1": {"step": 6, "age": 10}}
    plain = train(tmp_path / "plain", 0, None)
    assert not same(zero, plain)
    one = train(tmp_path / "one", 1, shared)  # from its checkpoint of six steps; finds the other one finished
    assert one.steps == STEPS
    assert one.curve[-1]["peers"] == {"0": {"step": STEPS, "age": 0}}

    def apart(first, second):
        rows = table(100, 9)
        batch = rows.unpack(rows.words)
        with torch.no_grad():
            p, q = (torch.sigmoid(m.model.eval()(batch.ids, batch.floats)) for m in (first, second))
        return float((p - q).abs().mean())

    alone = train(tmp_path / "alone", 1, None)
    assert apart(zero, one) < apart(plain, alone)


def test_a_killed_group_goes_on_from_its_checkpoint_with_the_peers_that_it_then_finds(tmp_path):
    """The peer has ended, so it is the same one before and after: then the resumed training is the same to the bit."""
    shared = tmp_path / "shared"
    train(tmp_path / "one", 1, shared)
    whole = train(tmp_path / "whole", 0, shared)
    assert train(tmp_path / "killed", 0, shared, stop_at=11) is None
    assert same(train(tmp_path / "killed", 0, shared), whole)


def of_ranks(ranks: Ranks, folder: Path, shared: Path):
    return dict(train(folder / f"ranks{ranks.num_ranks}", 0, shared, ranks=ranks).model.state_dict())


def test_a_group_of_two_ranks_trains_as_one_of_one(tmp_path):
    shared = tmp_path / "shared"
    train(tmp_path / "one", 1, shared)
    expected = train(tmp_path / "zero", 0, shared).model.state_dict()
    first, second = together(of_ranks, 2, tmp_path, tmp_path, shared)
    for name, value in expected.items():
        assert torch.equal(first[name], second[name])
        torch.testing.assert_close(first[name], value, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize(
    ("kind", "settings", "sharded", "message"),
    [
        ("two_tower", {}, False, "the loss of TwoTower compares rows of a batch"),
        ("lr", {"compile": "on"}, False, "train.compile=off"),
        ("lr", {"cuda_graph": "on"}, False, "train.cuda_graph=off"),
        ("lr", {}, True, "train.tables=replicated"),
    ],
)
def test_what_peers_cannot_teach_is_refused_by_name(kind, settings, sharded, message):
    model = model_of(1, kind, **({"loss": "softmax"} if kind == "two_tower" else {}))
    options = WholeTrainSettings(epochs=1, batch_size=8, lr_max=0.1, **settings)
    with pytest.raises(TrainingError, match=message):
        require_can_codistill(model, options, sharded)


def test_a_model_that_leaves_out_the_loss_cannot_be_taught(tmp_path, monkeypatch):
    train(tmp_path / "one", 1, tmp_path / "shared")
    kind = type(model_of(0))
    own = TargetLoss([("binary", 1)])
    monkeypatch.setattr(
        kind, "training_loss", lambda self, batch, loss: own(self(batch.ids, batch.floats), batch.targets, batch.weight)
    )
    with pytest.raises(TrainingError, match="training_loss does not call the loss that it is given"):
        train(tmp_path / "zero", 0, tmp_path / "shared")


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="2 is none of 2 groups"):
        CodistillSettings(group=2)
    with pytest.raises(ValueError, match="start_from must be null"):
        TrainSettings(codistill={}, start_from="current")
