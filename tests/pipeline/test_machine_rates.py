"""A machine's rates are work divided by its time."""

from types import SimpleNamespace

import torch

from pipeline import machine_rates
from pipeline.machine_rates import measure_rates


def test_rates_are_the_work_over_its_time(monkeypatch):
    ran = []

    def half_a_second(work, device):
        work()
        ran.append(device)
        return 0.5

    monkeypatch.setattr(machine_rates, "seconds_of", half_a_second)
    found = measure_rates("cpu", torch.float32, packed_words=10, num_bytes=1 << 16, side=32)
    assert ran == ["cpu"] * 4
    assert found.copy == 2 * (1 << 16)  # half of the table is read and written
    assert found.random == 2 * (1 << 16) // 8
    assert found.packed == 2 * ((1 << 14) // 10 // 8) * 40  # whole rows of 10 words, an eighth of them
    assert found.matmul == 2 * 2 * 32**3
    assert "32" in str(found)


def test_seconds_are_a_median_of_runs(monkeypatch):
    times = iter([0, 3, 10, 11, 20, 22, 30, 39, 40, 42])
    # The module's own name, for other threads of this process ask the clock too.
    monkeypatch.setattr(machine_rates, "time", SimpleNamespace(perf_counter=lambda: float(next(times))))
    assert machine_rates.seconds_of(lambda: None, "cpu") == 2
