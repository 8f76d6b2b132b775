"""Batch loaders: exact resume at any step, agreement between loaders, steady memory."""

import json
import os
from pathlib import Path

import pytest
import torch

from loaders.dataset import BatchDataset
from loaders.errors import LoaderError
from loaders.loader import BatchLoader
from loaders.packed import PackedTable


def rows_of(batches) -> list[list[int]]:
    return [batch.group.tolist() for batch in batches]


def new_loader(table: PackedTable, batch_size: int = 10, **settings) -> BatchLoader:
    return BatchLoader(BatchDataset(table, batch_size, **{"seed": 7, **settings}))


def check_resume(make_loader, num_epochs: int, stop_epoch: int, stop_step: int) -> None:
    """A loader stopped there and one that takes up its state together give what one loader gives alone."""
    whole = make_loader()
    expected = [rows_of(whole) for _ in range(num_epochs)]
    stopped = make_loader()
    for _ in range(stop_epoch):
        rows_of(stopped)
    head = [batch.group.tolist() for _, batch in zip(range(stop_step), stopped, strict=False)]
    state = json.loads(json.dumps(stopped.state_dict()))
    assert (state["epoch"], state["step"]) == (stop_epoch, stop_step)

    resumed = make_loader()
    resumed.load_state_dict(state)
    tail = [rows_of(resumed) for _ in range(num_epochs - stop_epoch)]
    assert head == expected[stop_epoch][:stop_step]
    assert tail == [expected[stop_epoch][stop_step:], *expected[stop_epoch + 1 :]]
    assert resumed.state_dict() == whole.state_dict()


@pytest.mark.parametrize("stop_epoch", [0, 1])
@pytest.mark.parametrize("stop_step", [0, 1, 6, 10, 11])
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_resumed_loader_gives_the_remaining_rows(make_table, stop_epoch, stop_step, shuffle):
    table = make_table(105)
    check_resume(lambda: new_loader(table, shuffle=shuffle), 3, stop_epoch, stop_step)


def test_resume_works_where_rows_go_through_the_feistel_network(make_table):
    table = make_table(5003)
    check_resume(lambda: new_loader(table, batch_size=700, drop_last=True), 2, stop_epoch=0, stop_step=3)


def test_every_epoch_covers_every_row_once_in_its_own_order(make_table):
    loader = new_loader(make_table(105))
    epochs = [[row for rows in rows_of(loader) for row in rows] for _ in range(3)]
    assert all(sorted(rows) == list(range(105)) for rows in epochs)
    assert len({tuple(rows) for rows in epochs}) == 3
    assert (loader.epoch, loader.step, len(loader)) == (3, 0, 11)


def test_two_loaders_with_one_seed_agree_and_with_another_do_not(make_table):
    table = make_table(105)
    assert rows_of(new_loader(table)) == rows_of(new_loader(table))
    assert rows_of(new_loader(table)) != rows_of(new_loader(table, seed=8))


def test_a_loop_that_was_left_goes_on_where_it_was(make_table):
    loader, whole = new_loader(make_table(50)), rows_of(new_loader(make_table(50)))
    for batch in loader:
        assert batch.group.tolist() == whole[0]
        assert loader.step == 1  # counted before the consumer works on it
        break
    assert rows_of(loader) == whole[1:]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 8}, "saved with seed=8, this loader has seed=7"),
        ({"num_rows": 51}, "saved with num_rows=51, this loader has num_rows=50"),
        ({"batch_size": 5}, "saved with batch_size=5, this loader has batch_size=10"),
        ({"shuffle": False}, "saved with shuffle=False, this loader has shuffle=True"),
        ({"drop_last": True}, "saved with drop_last=True"),
        ({"step": 6}, r"step 6 is outside \[0, 5\]"),
        ({"step": -1}, "step -1 is outside"),
        ({"epoch": -1}, "epoch must not be negative"),
    ],
)
def test_a_state_of_another_run_is_refused_with_the_reason(make_table, change, message):
    loader = new_loader(make_table(50))
    with pytest.raises(LoaderError, match=message):
        loader.load_state_dict({**loader.state_dict(), **change})
    assert (loader.epoch, loader.step) == (0, 0)


def test_a_state_without_a_key_is_refused(make_table):
    loader = new_loader(make_table(50))
    state = loader.state_dict()
    del state["seed"]
    with pytest.raises(LoaderError, match=r"seed not found\. It holds epoch, step"):
        loader.load_state_dict(state)


def test_an_error_in_the_table_reaches_the_consumer_and_the_step_stays(make_table, monkeypatch):
    loader = new_loader(make_table(50))

    def fail(*_, **__):
        raise OSError("page could not be read")

    next(iter(loader))
    monkeypatch.setattr(BatchDataset, "words", fail)
    with pytest.raises(OSError, match="page could not be read"):
        next(iter(loader))
    assert loader.step == 1


def test_memory_does_not_grow_over_epochs(make_table):
    """Batches of 40 epochs take 640 MB together."""
    loader = new_loader(make_table(400_000), batch_size=50_000)
    rows = sum(batch.num_rows for _ in range(3) for batch in loader)
    before = _resident_bytes()
    for _ in range(40):
        rows += sum(batch.num_rows for batch in loader)
    assert rows == 43 * 400_000
    assert _resident_bytes() - before < 30e6


def test_a_memory_mapped_table_serves_the_same_batches(make_table, tmp_path):
    table = make_table(500)
    table.save(tmp_path)
    assert rows_of(new_loader(PackedTable.load(tmp_path))) == rows_of(new_loader(table))


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.gpu
def test_a_host_table_arrives_on_the_gpu_without_waiting(make_table):
    table = make_table(100_000)
    expected = [batch.floats for batch in new_loader(table, batch_size=7000)]
    loader = BatchLoader(BatchDataset(table, 7000, seed=7), device="cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        batches = list(loader)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(batch.ids.is_cuda for batch in batches)
    assert all(torch.equal(got.floats.cpu(), floats) for got, floats in zip(batches, expected, strict=True))
