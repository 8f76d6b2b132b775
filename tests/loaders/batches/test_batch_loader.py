"""Batch loaders: exact resume at any step, agreement between loaders, steady memory."""

import gc
import json
import time
import tracemalloc
from itertools import islice

import pytest
import torch

from gigabatch.loaders.batches.dataset import BatchDataset
from gigabatch.loaders.batches.loader import BatchLoader
from gigabatch.loaders.errors import LoaderError
from gigabatch.loaders.tables.packed import PackedTable
from tests.devices import no_waiting


def rows_of(batches) -> list[list[int]]:
    return [batch.group.tolist() for batch in batches]


def new_loader(table: PackedTable, batch_size: int = 10, prefetch: int = 0, **settings) -> BatchLoader:
    return BatchLoader(BatchDataset(table, batch_size, **{"seed": 7, **settings}), prefetch=prefetch)


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


@pytest.mark.parametrize("stop_step", [0, 1, 6, 10, 11])
@pytest.mark.parametrize(("shuffle", "prefetch", "stop_epoch"), [(True, 0, 1), (True, 3, 0), (False, 1, 1)])
def test_a_resumed_loader_gives_the_remaining_rows(make_table, stop_epoch, stop_step, shuffle, prefetch):
    table = make_table(105)
    check_resume(lambda: new_loader(table, shuffle=shuffle, prefetch=prefetch), 3, stop_epoch, stop_step)


def test_every_epoch_covers_every_row_once_in_its_own_order(make_table):
    loader = new_loader(make_table(105))
    epochs = [[row for rows in rows_of(loader) for row in rows] for _ in range(3)]
    assert all(sorted(rows) == list(range(105)) for rows in epochs)
    assert len({tuple(rows) for rows in epochs}) == 3
    assert (loader.epoch, loader.step, len(loader)) == (3, 0, 11)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_after_a_loop_that_was_left_comes_a_whole_epoch_and_a_state_goes_on_within_it(make_table, prefetch):
    """A look at the first batch took it from the first epoch of the training that followed."""
    table = make_table(50)
    whole = new_loader(table)
    expected = [rows_of(whole) for _ in range(4)]
    loader = new_loader(table, prefetch=prefetch)
    for _ in range(2):
        for batch in loader:
            assert batch.group.tolist() == expected[loader.epoch][0]
            assert loader.step == 1  # counted before the consumer works on it
            break
    assert (loader.epoch, loader.step) == (1, 1)
    left = loader.state_dict()
    assert rows_of(loader) == expected[2]
    for other in (loader, new_loader(table)):
        other.load_state_dict(left)
        assert [rows_of(other) for _ in range(3)] == [expected[1][1:], *expected[2:]]
    loader.load_state_dict(left)
    next(iter(loader))
    assert rows_of(loader) == expected[2]  # what was resumed was left, too


@pytest.mark.parametrize("prefetch", [0, 2])
def test_exactly_the_batches_of_an_epoch_make_an_epoch(make_table, prefetch):
    table = make_table(105)
    whole = new_loader(table)
    expected = [rows_of(whole) for _ in range(4)]
    loader = new_loader(table, prefetch=prefetch)
    assert [rows_of(islice(loader, len(loader))) for _ in range(3)] == expected[:3]
    assert (loader.epoch, loader.step) == (2, 11)  # nobody has asked for more
    assert rows_of(loader) == expected[3]
    assert loader.state_dict() == whole.state_dict()


def test_the_epoch_that_the_source_was_set_to_follows_the_last_batch(make_table):
    table = make_table(105)
    whole = new_loader(table)
    expected = [rows_of(whole) for _ in range(8)]
    loader = new_loader(table)
    rows_of(islice(loader, len(loader)))
    loader.source.set_epoch(5)
    assert [rows_of(loader) for _ in range(3)] == expected[5:]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_the_epoch_that_the_source_was_set_to_follows_a_loop_that_was_left_in_it(make_table, prefetch):
    """A look at the first batch made epochs 1, 1 and 2 of a training that sets 0, 1 and 2."""
    table = make_table(105)
    whole = new_loader(table)
    expected = [rows_of(whole) for _ in range(3)]
    loader = new_loader(table, prefetch=prefetch)
    next(iter(loader))
    for epoch in range(3):
        loader.source.set_epoch(epoch)
        assert rows_of(loader) == expected[epoch]


def test_the_epoch_that_the_source_was_set_to_at_the_last_batch_follows(make_table):
    """It was the one after."""
    table = make_table(105)
    whole = new_loader(table)
    expected = [rows_of(whole) for _ in range(6)]
    loader = new_loader(table)
    for _ in loader:
        if loader.step == len(loader):
            loader.source.set_epoch(5)
    assert rows_of(loader) == expected[5]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_second_loop_ends_the_first_by_an_error(make_table, prefetch):
    """Both took batches of one epoch: each missed those of the other, and nothing told."""
    table = make_table(50)
    whole = new_loader(table)
    expected = [rows_of(whole) for _ in range(3)]
    loader = new_loader(table, prefetch=prefetch)
    first, second = iter(loader), iter(loader)
    assert next(first).group.tolist() == expected[0][0]
    assert next(second).group.tolist() == expected[1][0]
    with pytest.raises(LoaderError, match="another loop over this loader has begun"):
        next(first)
    assert rows_of(second) == expected[1][1:]
    assert rows_of(loader) == expected[2]
    with pytest.raises(LoaderError, match="another loop over this loader has begun"):
        list(zip(loader, loader, strict=True))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_loop_whose_dataset_another_loader_set_to_the_next_epoch_is_refused(make_table, prefetch):
    """The rest of the loop had the rows of the other epoch: some twice, others never."""
    dataset = BatchDataset(make_table(50), 10, seed=7)
    loader = BatchLoader(dataset, prefetch=prefetch)
    batches = iter(loader)
    next(batches)
    rows_of(BatchLoader(dataset))
    with pytest.raises(LoaderError, match="dataset was set to epoch 1 within a loop over another one, at step 1"):
        next(batches)
    whole = new_loader(dataset.table)
    assert rows_of(loader) == [rows_of(whole) for _ in range(2)][1]


def test_a_state_of_the_last_batch_gives_an_empty_epoch_also_to_the_loader_that_saved_it(make_table):
    loader = new_loader(make_table(50))
    rows_of(islice(loader, len(loader)))
    loader.load_state_dict(loader.state_dict())
    assert [len(rows_of(loader)) for _ in range(2)] == [0, 5]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 8}, "saved with seed=8, this loader has seed=7"),
        ({"num_rows": 51}, "saved with num_rows=51, this loader has num_rows=50"),
        (
            {"global_batch_size": 5},
            "saved with global_batch_size=5, this loader has global_batch_size=10.*batch_size 5,",
        ),
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


def rows_on(num_ranks: int, table: PackedTable, state: dict | None = None, steps: int | None = None):
    """Rows of each step of all ranks (12 rows), from `state` on, and the state after `steps` of them."""
    loaders = [new_loader(table, 12 // num_ranks, rank=rank, num_ranks=num_ranks) for rank in range(num_ranks)]
    for loader in loaders:
        loader.load_state_dict(state or loader.state_dict())
    found = []
    for _, batches in zip(range(steps or len(loaders[0])), zip(*loaders, strict=True), strict=False):
        found.append([row for batch in batches for row in batch.group.tolist()])
    (state_after,) = {json.dumps(loader.state_dict()) for loader in loaders}  # the same on every rank
    return found, json.loads(state_after)


@pytest.mark.parametrize(("saved_on", "resumed_on"), [(1, 4), (4, 1), (3, 2), (2, 12)])
def test_a_run_resumes_on_another_number_of_ranks(make_table, saved_on, resumed_on):
    table = make_table(5003)
    expected, _ = rows_on(1, table)
    head, state = rows_on(saved_on, table, steps=100)
    tail, _ = rows_on(resumed_on, table, state)
    assert head + tail == expected


def test_another_global_batch_size_is_refused_with_the_one_that_fits(make_table):
    table = make_table(50)
    state = new_loader(table, 12).state_dict()
    with pytest.raises(
        LoaderError, match=r"global_batch_size=12, .* has global_batch_size=20.* 4 rank.* batch_size 3,"
    ):
        new_loader(table, 5, rank=1, num_ranks=4).load_state_dict(state)
    with pytest.raises(LoaderError, match=r"On 5 rank.* a number of ranks that divides it"):
        new_loader(table, 5, rank=1, num_ranks=5).load_state_dict(state)


@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_a_batch_is_valid_until_the_one_after_next_is_asked_for(make_table, prefetch):
    table = make_table(20_000)
    expected = rows_of(new_loader(table, 700))
    before = None
    for step, batch in enumerate(new_loader(table, 700, prefetch=prefetch)):
        time.sleep(0.002 * (prefetch > 0))  # the thread gathers what comes next meanwhile
        assert batch.group.tolist() == expected[step]
        assert before is None or before.group.tolist() == expected[step - 1]
        before = batch


@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_buffers_are_filled_again_and_copies_are_kept(make_table, prefetch):
    table = make_table(105)
    loader = new_loader(table, prefetch=prefetch)
    assert len({batch.group.data_ptr() for _ in range(3) for batch in loader}) == 2 + prefetch
    kept = BatchLoader(BatchDataset(table, 10, seed=7), prefetch=prefetch, copy=True)
    assert rows_of(list(kept)) == rows_of(new_loader(table))


def test_what_was_gathered_ahead_is_forgotten_when_the_loader_moves(make_table):
    """And the batch before stays as it is, also then."""
    table = make_table(105)
    expected = [rows_of(loader) for loader in [new_loader(table)] for _ in range(7)]
    loader = new_loader(table, prefetch=3)
    start = loader.state_dict()
    first = next(iter(loader))
    loader.load_state_dict(start)
    again = next(iter(loader))
    assert first.group.tolist() == again.group.tolist() == expected[0][0]
    loader.source.set_epoch(5)
    moved = next(iter(loader))
    assert again.group.tolist() == expected[0][0]
    assert moved.group.tolist() == expected[5][0]
    assert rows_of(loader) == expected[6]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_error_reaches_the_consumer_at_its_own_step(make_table, monkeypatch, prefetch):
    loader = new_loader(make_table(50), prefetch=prefetch)
    expected = rows_of(new_loader(make_table(50)))
    words = BatchDataset.words

    def fail_at_two(self, index, out=None):
        if index == 2:
            raise OSError("page could not be read")
        return words(self, index, out)

    monkeypatch.setattr(BatchDataset, "words", fail_at_two)
    batches = iter(loader)
    assert [next(batches).group.tolist() for _ in range(2)] == expected[:2]
    with pytest.raises(OSError, match="page could not be read"):
        next(batches)
    assert loader.step == 2
    monkeypatch.setattr(BatchDataset, "words", words)
    loader.load_state_dict(loader.state_dict())
    assert rows_of(loader) == expected[2:]


def test_prefetch_must_be_a_number_of_batches(make_table):
    with pytest.raises(LoaderError, match="prefetch=-1: it is the number of batches gathered ahead"):
        new_loader(make_table(50), prefetch=-1)


def test_prefetch_is_refused_where_rows_are_not_on_the_cpu(make_table):
    dataset = BatchDataset(PackedTable(make_table(50).words.to("meta"), make_table(50).schema), 10)
    with pytest.raises(LoaderError, match=r"0 for rows that lie on a GPU\. The rows are on meta"):
        BatchLoader(dataset, prefetch=1)


@pytest.mark.parametrize("prefetch", [0, 1])
def test_no_python_object_is_left_behind_by_50_epochs(make_table, prefetch):
    loader = new_loader(make_table(5000), batch_size=500, prefetch=prefetch)
    for _ in range(3):
        rows_of(loader)
    tracemalloc.start()
    try:
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(50):
            sum(batch.num_rows for batch in loader)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 20_000  # one batch object kept for each of the 500 steps would be over 100,000


@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_a_host_table_arrives_on_any_device_without_waiting(make_table, prefetch, any_device):
    table = make_table(100_000)
    expected = [batch.floats.clone() for batch in new_loader(table, batch_size=7000)]
    loader = BatchLoader(BatchDataset(table, 7000, seed=7), device=any_device, prefetch=prefetch, copy=True)
    with no_waiting(any_device):
        batches = list(loader)
    assert all(batch.ids.device.type == any_device for batch in batches)
    assert all(torch.equal(got.floats.cpu(), floats) for got, floats in zip(batches, expected, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("prefetch", [0, 1, 2])
@pytest.mark.parametrize("own_stream", [True, False])
def test_slow_work_on_the_gpu_sees_its_own_batch(make_table, prefetch, own_stream):
    """Every step first sleeps on the device, so that the host and the copies run as far ahead as they may."""
    table = make_table(100_000)
    expected = torch.stack([batch.floats.double().sum() for batch in new_loader(table, batch_size=5000)])
    loader = BatchLoader(BatchDataset(table, 5000, seed=7), device="cuda", prefetch=prefetch)
    sums = torch.zeros(3, 20, dtype=torch.float64, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream() if own_stream else torch.cuda.current_stream()):
        torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
        for row in sums:
            loader.load_state_dict({**loader.state_dict(), "epoch": 0, "step": 0})
            for step, batch in enumerate(loader):
                torch.cuda._sleep(2_000_000)
                row[step] = batch.floats.double().sum()
    torch.cuda.synchronize()
    assert torch.allclose(sums.cpu(), expected.expand(3, 20), rtol=1e-9)
