"""One rank of several without the others: it gets and sends what it does among ranks that are like it."""

from dataclasses import replace
from itertools import count

import pytest
import torch

from gigabatch.features.schema import IdColumn, Target, TensorSchema
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.losses import TargetLoss
from gigabatch.models.optimizers.ema import WeightAverage
from gigabatch.models.parallel.ranks import Ranks
from gigabatch.models.shelf import model_class
from gigabatch.pipeline.config.config import GradientSettings, TrainSettings
from gigabatch.pipeline.lab.advise.links import KINDS, collectives
from gigabatch.pipeline.lab.advise.one_rank import (
    LEAST_STEPS,
    PARTS,
    WARM_STEPS,
    OneOf,
    Work,
    take_steps,
)
from gigabatch.pipeline.lab.profile.step_phases import Laps
from gigabatch.pipeline.machine import using_threads
from gigabatch.pipeline.training.defaults import settle
from tests.models.parallel.together import together

SIZES, ROWS, BATCH = (600, 40), 1200, 100


def work_of(kind: str, **settings) -> Work:
    random = torch.Generator().manual_seed(1)
    ids = [torch.randint(size, (ROWS,), generator=random, dtype=torch.int32) for size in SIZES]
    floats = list(torch.randn(2, ROWS, generator=random))
    schema = TensorSchema(
        tuple(IdColumn(f"id{place}", size) for place, size in enumerate(SIZES)), ("a", "b"), (Target("y", "binary"),)
    )
    table = PackedTable.from_columns(schema, ids, floats, [(floats[0] > 0).float()])

    def new_model():
        torch.manual_seed(1)
        return model_class(kind)(ModelInputs(SIZES, 2), model_class(kind).Settings(layers=(8,), **settings))

    counts = {place: column.bincount(minlength=SIZES[place]) for place, column in enumerate(ids)}
    options = settle(TrainSettings(epochs=1, batch_size=BATCH, lr_max=0.01), ROWS, SIZES)
    return Work(table, options, TargetLoss([("binary", 1)]), new_model, counts, "cpu", seed=1)


def exchanged(ranks):
    """What every collective gives, where all ranks send alike, and the bytes of each."""
    n = ranks.num_ranks
    rows = torch.arange(6 * n).view(-1, 2)
    found = [
        ranks.all_reduce(torch.tensor([1.5, -2.0]), "a"),
        *ranks.all_gather(rows, "b"),
        *ranks.all_gather_rows(rows[:3], "c"),
        *ranks.all_gather_counted(rows[:2], [2] * n, "d"),
        ranks.broadcast(torch.tensor([7.0]), "f"),
        torch.tensor(ranks.all_to_all_counts([3] * n, rows.device)),
        torch.tensor(ranks.gather(5, "g")),
    ]
    # Of what differs by receiver, the first rank's, to whom all send the first rows.
    found += [ranks.reduce_scatter(rows.clone(), "h"), ranks.all_to_all(rows, [3] * n, [3] * n, "i")]
    found.append(ranks.all_to_all(rows[: n * (n + 1) // 2], list(range(1, n + 1)), [ranks.rank + 1] * n, "j"))
    return [one.tolist() for one in found], dict(ranks.traffic.bytes), dict(ranks.traffic.calls)


def real_steps(ranks, scheme):
    torch.set_num_threads(1)
    step = take_steps(work_of("tabular"), ranks, 0.0, tables=scheme)
    return step.bytes, step.calls


def test_what_comes_back_is_what_like_ranks_send(tmp_path):
    assert exchanged(OneOf(2)) == together(exchanged, 2, tmp_path)[0]


@pytest.mark.parametrize("scheme", ["replicated", "sharded"])
def test_a_step_sends_what_a_rank_of_two_sends(scheme, tmp_path):
    """Batch norm, dense gradients and numbers of rows to the byte; rows nearly, as those of ranks differ."""
    alone = take_steps(work_of("tabular"), OneOf(2), 0.0, tables=scheme)
    sent, calls = together(real_steps, 2, tmp_path, scheme)[0]
    assert alone.calls == calls
    assert alone.bytes.keys() == sent.keys()
    for name, number in sent.items():
        fixed = "all_reduce" in name or "counts" in name
        assert alone.bytes[name] == pytest.approx(number, rel=0 if fixed else 0.1), name
    assert alone.sent_for_tables == pytest.approx(
        alone.sent - sent["all_reduce gradients"] - sent["all_reduce batch norm"]
    )


def test_large_elements_of_dense_gradients_are_no_bytes_of_tables():
    work = work_of("tabular")
    dct = GradientSettings(compress="dct", drop=0.9)
    plain, sparse = (
        take_steps(replace(work, settings=work.settings.model_copy(update={"gradients": gradients})), OneOf(2), 0.0)
        for gradients in (GradientSettings(), dct)
    )
    assert sparse.bytes["all_gather sparse gradients"] > 0
    # The same rows of tables, whatever dense gradients are sent as.
    assert sparse.sent_for_tables == pytest.approx(plain.sent_for_tables)


def test_a_step_takes_what_its_parts_take(monkeypatch):
    ticks = count()
    monkeypatch.setattr(Laps, "_now", lambda laps: float(next(ticks)))  # a second passes at every look at the clock
    found = take_steps(work_of("deepfm"), Ranks(), 0.0, batch_size=50)
    assert list(found.seconds) == list(PARTS)
    assert all(seconds >= 1 for seconds in found.seconds.values())
    assert sum(found.seconds.values()) == found.total
    assert (found.bytes, found.sent) == ({}, 0)


def test_steps_leave_threads_and_random_numbers_as_they_were():
    before, random = torch.get_num_threads(), torch.get_rng_state()
    take_steps(work_of("tabular"), OneOf(4), 0.0, threads=before + 1)
    assert torch.get_num_threads() == before
    assert torch.equal(torch.get_rng_state(), random)
    with using_threads(before + 1):
        assert torch.get_num_threads() == before + 1


def test_an_average_of_weights_is_part_of_a_step(monkeypatch):
    calls = []
    monkeypatch.setattr(WeightAverage, "update", lambda average: calls.append(average))
    work = work_of("deepfm")
    take_steps(replace(work, settings=work.settings.model_copy(update={"ema_decay": 0.9})), Ranks(), 0.0)
    assert len(calls) >= WARM_STEPS + LEAST_STEPS


def test_collectives_take_longer_the_more_they_send(tmp_path):
    found, _ = together(collectives, 2, tmp_path, "cpu")
    for kind in KINDS:
        latency, bandwidth = found[kind]
        assert 1e-6 < latency < 1
        assert 1e6 < bandwidth < 1e12
    assert found["sharing"] >= 1
