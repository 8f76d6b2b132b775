"""The communication benchmark: its peers compute what the plain model does, and its arithmetic is right."""

import math
import random

import pytest
import torch

from benchmarks.communication import against, des_savings, interval, summed
from benchmarks.communication_quality import aucs, planted_settings, zipf_ids
from benchmarks.communication_schemes import SCHEMES, DealtTables, Training
from gigabatch.models.kernels import using_kernels
from gigabatch.models.parallel.costs import place_bytes
from gigabatch.models.parallel.exchange import Exchange
from tests.models.parallel.spread import batches, built, part
from tests.models.parallel.together import together


def dealt(ranks):
    """Largest difference of a model whose tables are dealt out to one with whole tables: outputs, gradients of rows."""
    model, whole = built("deepfm"), built("deepfm")
    batch = part(batches(1, 12 * ranks.num_ranks)[0], ranks.rank, ranks.num_ranks)
    for what in ("linear", "fields"):
        holder = getattr(model, what)
        holder.tables = DealtTables(holder.tables, ranks, Exchange(ranks), what)
        holder.tables.rows.gradients = "dense"
    out, expected = model(*batch[:2]), whole(*batch[:2])
    out.square().sum().backward()
    expected.square().sum().backward()
    off = float((out - expected).detach().abs().max())
    for column, table in enumerate(whole.fields.tables.weights):
        gradient = ranks.all_reduce(table.grad.clone(), "expected")
        if column in model.fields.tables.own:
            mine = model.fields.tables.rows.weights[model.fields.tables.own.index(column)].grad
            off = max(off, float((mine - gradient).abs().max()))
    return off


def test_dealt_tables_are_the_model(tmp_path):
    with using_kernels("reference"):
        for off in together(dealt, 2, tmp_path):
            assert off < 1e-5


def all_schemes(ranks):
    found = {}
    for scheme in SCHEMES:
        batch = part(batches(1, 400 * ranks.num_ranks)[0], ranks.rank, ranks.num_ranks)
        with using_kernels("reference"):
            training = Training(built("fm"), "fm", scheme, ranks, batch[0])
            for _ in range(3):
                ranks.traffic.clear()
                loss = training.step(*batch)
                training.forget()
        dense = torch.cat([parameter.grad.flatten() for parameter in training.dense_parameters.values()])
        sent = ranks.traffic.total, sum(training.formula().values())
        found[scheme] = (*sent, bool(loss.isfinite()), dense.numpy())
    return found


def test_bytes_of_every_scheme_are_those_of_its_formula(tmp_path):
    told = together(all_schemes, 2, tmp_path)
    for scheme in SCHEMES:
        sent = sum(one[scheme][0] for one in told) / 2
        assert sent == pytest.approx(told[0][scheme][1], rel=0.1), scheme
        assert told[0][scheme][2]
    summed = told[0]["parameter server"][3]
    for scheme in ("pooled all-to-all", "DES", "PowerSGD", "bf16"):  # DDP's average is made the sum that others have
        assert told[0][scheme][3] == pytest.approx(summed, rel=0.02, abs=2e-5), scheme


@pytest.mark.parametrize("share", [0.3, 0.08, 0.01, 0.0005])
def test_places_take_as_many_bytes_as_drawn_ones_do(share):
    draw, length = random.Random(0), 400_000
    places = [place for place in range(length) if draw.random() < share]
    gaps = [after - before - 1 for before, after in zip([-1, *places], places, strict=False)]
    counted = min(sum(1 + gap // 255 for gap in gaps), sum(2 * (1 + gap // 65535) for gap in gaps), length / 8)
    assert place_bytes(share) == pytest.approx(counted / len(places), rel=0.05)


def test_ids_by_zipfs_law():
    import numpy as np

    ids = zipf_ids(np.random.default_rng(0), 200_000, (50, 3), 1.1)
    assert ids.shape == (200_000, 2)
    assert int(ids.min()) == 0
    assert int(ids[:, 1].max()) == 2
    counts = torch.bincount(ids[:, 0]).double()
    assert float(counts[0] / counts[9]) == pytest.approx(10**1.1, rel=0.1)


def test_savings_and_means_over_ranks():
    def cell(scheme, values, ids):
        sent, formula = {"values": values, "ids": ids, "dense": 1}, {"values": 40, "ids": 9, "dense": 1}
        place = {"setting": "s", "ranks": 2, "model": "fm", "scheme": scheme, "distinct": 3.0}
        return {**place, "sent": sent, "formula": formula}

    des, server = (
        summed([[cell(s, v, 10)], [cell(s, v + 20, 10)]])[0] for s, v in (("DES", 10), ("parameter server", 70))
    )
    assert des["sent"]["values"] == 20
    assert des["off"] == pytest.approx(31 / 50 - 1)
    (row,) = des_savings([des, server])
    assert row["values, sent"] == 0.75
    assert row["with ids, sent"] == round(1 - 30 / 90, 4)


def test_an_interval_of_ten():
    """Student's t of nine degrees of freedom is 2.262: tables of any textbook."""
    middle, low, high = interval([float(one) for one in range(10)])
    assert middle == 4.5
    assert high - middle == pytest.approx(2.262 * math.sqrt(110 / 12) / math.sqrt(10))
    assert middle - low == pytest.approx(high - middle)


def test_a_way_is_compared_seed_by_seed():
    plain = [{"AUC": 0.7 + seed / 100, "dense": 300.0} for seed in range(10)]
    others = [{"AUC": one["AUC"] - (0.001 if seed % 2 else 0.003), "dense": 100.0} for seed, one in enumerate(plain)]
    (middle, low, high), factor = against(plain, others, "dense")
    assert (round(middle, 6), factor) == (0.002, 3.0)
    assert high - middle == pytest.approx(2.262 * 0.00105409 / math.sqrt(10), rel=1e-4)  # Student's t of 9 degrees
    assert middle - low == pytest.approx(high - middle)


def small_quality(ranks):
    settings = planted_settings()["dp"] | {"rows": (400, 200), "batch": 100, "epochs": 1}
    with using_kernels("reference"):
        return aucs(ranks, seeds=[0], **settings)


def test_peers_of_dct_train_on_its_rows(tmp_path):
    (first, second) = together(small_quality, 2, tmp_path)
    assert first.keys() == {"plain", "DCT", "PowerSGD", "bfloat16"}
    assert first["bfloat16"][0]["dense"] == first["plain"][0]["dense"] / 2
    assert first["PowerSGD"][0]["dense"] < first["plain"][0]["dense"] / 1.5  # whole in the first two of four steps
    for way, (one,) in first.items():
        assert 0.4 < one["AUC"] < 0.8
        assert one["AUC"] == second[way][0]["AUC"]
