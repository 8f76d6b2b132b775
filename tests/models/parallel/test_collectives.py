"""Collectives of several gloo processes against plain sums and lists, and their bytes against formulas."""

import torch

from gigabatch.models.parallel.ranks import Ranks, Traffic
from tests.models.parallel.together import together


def work(ranks):
    own = torch.arange(6, dtype=torch.float32).view(6, 1) + 10 * ranks.rank
    found = {
        "sum": ranks.all_reduce(own.clone(), "a"),
        "gathered": torch.cat(ranks.all_gather(own, "b")),
        "rows": torch.cat(ranks.all_gather_rows(own[: ranks.rank], "c")),
        "scattered": ranks.reduce_scatter(own, "d"),
    }
    send = [1, 2, 3][: ranks.num_ranks]
    receive = ranks.all_to_all_counts(send, own.device)
    found["receive"] = torch.tensor(receive)
    found["exchanged"] = ranks.all_to_all(own[: sum(send)], send, receive, "e")
    found["first"] = ranks.broadcast(own.clone(), "f")
    ranks.barrier()
    return {name: value.tolist() for name, value in found.items()}, dict(ranks.traffic.bytes)


def test_collectives_of_three_ranks(tmp_path):
    told = together(work, 3, tmp_path)
    own = [[[float(i + 10 * rank)] for i in range(6)] for rank in range(3)]
    summed = [[float(3 * i + 30)] for i in range(6)]
    for rank, (found, _) in enumerate(told):
        assert found["sum"] == summed
        assert found["gathered"] == own[0] + own[1] + own[2]
        assert found["rows"] == own[1][:1] + own[2][:2]
        assert found["scattered"] == summed[2 * rank : 2 * rank + 2]
        assert found["receive"] == [rank + 1] * 3
        starts = [0, 1, 3]
        assert found["exchanged"] == [row for one in own for row in one[starts[rank] : starts[rank] + rank + 1]]
        assert found["first"] == own[0]


def test_bytes_of_three_ranks(tmp_path):
    for rank, (_, sent) in enumerate(together(work, 3, tmp_path)):
        assert sent["all_reduce", "a"] == 2 * 2 / 3 * 24
        assert sent["all_gather", "b"] == 2 * 24
        assert sent["all_gather", "c"] == 2 * 4 * rank
        assert sent["reduce_scatter", "d"] == 2 / 3 * 24
        assert sent["all_to_all", "e"] == 4 * (6 - [1, 2, 3][rank])
        assert sent["broadcast", "f"] == (24 if rank == 0 else 0)


def test_one_rank_alone_sends_nothing():
    found, sent = work(Ranks())
    assert found["sum"] == found["first"] == [[float(i)] for i in range(6)]
    assert found["exchanged"] == [[0.0]]
    assert not sent


def test_traffic_adds_up():
    traffic = Traffic()
    traffic.count("all_reduce", "x", 3.0)
    traffic.count("all_reduce", "x", 4.0)
    assert traffic.total == 7
    assert traffic.calls["all_reduce", "x"] == 2
    traffic.clear()
    assert traffic.total == 0
