"""Trainings of several ranks whose tables DES spreads (`train.tables: des`) against the same training on one."""

import logging
import shutil
from pathlib import Path

import pytest
import torch

from gigabatch.models.losses import TargetLoss
from gigabatch.models.parallel.ranks import Ranks
from gigabatch.models.shelf import model_class
from gigabatch.pipeline.config.config import TrainSettings
from gigabatch.pipeline.training.start import Carried
from gigabatch.pipeline.training.train import train_model
from tests.models.parallel.together import together
from tests.pipeline.training import test_train_ranks as shared
from tests.pipeline.training.test_train_ranks import CURVE, WEIGHTS, require_alike, trained

SIZES = (7, 40, 30, 60, 25, 80, 33, 51, 2)  # so many columns that sums are fewer than rows; one smaller than 3 ranks
DES = {"tables": "des", "kernels": "reference"}
DEEPFM = ("deepfm", {"layers": [8], "dropout": 0.2})
DLRM = ("dlrm", {"embedding_dim": 4, "bottom_layers": [8], "top_layers": [8]})
CASES = {
    "lr weighted": {"model": ("lr", {}), "weighted": True, "train": DES},
    "fm, a row not a number": {"model": ("fm", {}), "nan": True, "train": DES},
    "deepfm averaged, clipped": {
        "model": DEEPFM,
        "train": {"optimizer": "adamw", "lr_max": 0.003, "ema_decay": 0.9, "max_grad_norm": 0.1} | DES,
    },
    "dlrm with drawn negatives": {"model": DLRM, "negatives": True, "train": DES},
}
CASES["deepfm averaged, clipped"]["train"]["optimizer_settings"] = {"rowwise": True}
HALVED = {name: CASES[name] for name in ("fm, a row not a number", "deepfm averaged, clipped")}
CHOSEN = {
    "lr weighted": ["linear: des"],
    "fm, a row not a number": ["linear: des", "fields: pairs"],
    "deepfm averaged, clipped": ["linear: des", "fields: dense"],
    "dlrm with drawn negatives": ["fields: rows"],
}
REFUSED = {
    "tabular": ({"model": shared.TABULAR, "train": DES}, "DES knows the operators of lr, fm, deepfm and dlrm"),
    "cowclip": ({"model": DEEPFM, "train": {"optimizer": "cowclip"} | DES}, "train.tables=des: cowclip"),
    "whole tables": ({"model": DEEPFM, "train": {"optimizer": "adamw"} | DES}, "takes whole tables"),
}


class Told(logging.Handler):
    """What the log said."""

    def __init__(self):
        super().__init__()
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


def warm(ranks: Ranks, folder: Path, weights, record):
    """A training from these weights, and from this state of an optimizer where there is one; its bias stays."""
    torch.manual_seed(4)
    model = model_class("deepfm")(shared.inputs(), model_class("deepfm").Settings(layers=[8]))
    model.linear.bias.requires_grad_(False)
    start = None
    if record is not None:
        model.load_state_dict(weights)
        start = Carried("earlier", record, True, [])
    folder.mkdir(parents=True, exist_ok=True)
    batch = shared.BATCH if record is None else shared.ROWS  # one step: later ones make rounding large (ReLUs, LAMB)
    options = TrainSettings(epochs=1, batch_size=batch, lr_max=0.02, **DES)
    found = train_model(
        model, shared.table(shared.ROWS, 1), shared.table(shared.VALID, 2), TargetLoss([("binary", 1)]), options,
        seed=3, device="cpu", folder=folder, ranks=ranks, start=start,
    )  # fmt: skip
    return found.curve, dict(found.model.state_dict()), found.record


def alone(ranks: Ranks, folder: Path):
    """On one rank: all cases, the start of a warm one, and what goes on from it."""
    shared.NUM_IDS = SIZES
    found = {name: trained(ranks, folder / name, case) for name, case in CASES.items()}
    _, weights, record = warm(ranks, folder / "start", None, None)
    return found, (weights, record), warm(ranks, folder / "warm", weights, record)


def spread(ranks: Ranks, folder: Path, half: Path, start):
    """On several: all cases, what is refused, a warm start; checkpoints within the second epoch, and the rest from
    those of another number of ranks."""
    shared.NUM_IDS = SIZES
    log, heard = logging.getLogger("gigabatch"), Told()
    log.setLevel(logging.INFO)
    log.addHandler(heard)
    found, said = {}, {}
    for name, case in CASES.items():
        heard.texts.clear()
        found[name] = trained(ranks, folder / name, case)
        said[name] = [text for text in heard.texts if text.startswith("tables by id")]
    refused = {}
    for name, (case, _) in REFUSED.items():
        try:
            trained(ranks, folder / name, case)
        except ValueError as error:
            refused[name] = str(error)
    started = warm(ranks, folder / "warm", *start)
    for name, case in HALVED.items():
        trained(ranks, folder / "half" / name, case, 8)
    rest = goes_on(ranks, folder / "rest", half) if half.exists() else {}
    return found, said, refused, started, rest


def goes_on(ranks: Ranks, folder: Path, half: Path):
    shared.NUM_IDS = SIZES
    if ranks.is_first:
        shutil.copytree(half, folder)
    ranks.barrier()
    return {name: trained(ranks, folder / name, case) for name, case in HALVED.items()}


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """By number of ranks what each found; two go on from checkpoints of three, and one from those of two."""
    folder = tmp_path_factory.mktemp("des")
    ((one, start, started),) = together(alone, 1, folder, folder / "1")
    found = {n: together(spread, n, folder, folder / str(n), folder / "3" / "half", start) for n in (3, 2)}
    (last,) = together(goes_on, 1, folder, folder / "last", folder / "2" / "half")
    return one, started, found, last


@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("name", CASES)
def test_curve_and_weights_are_those_of_one_rank(name, number, told):
    one, _, found, _ = told
    first = found[number][0][0][name]
    require_alike([first], one[name])
    for other, *_ in found[number][1:]:
        assert (other[name][0], other[name][2]) == (first[0], first[2])
    assert first[2][2] == (2 if CASES[name].get("nan") else 0)
    sent = first[0][-1]["sent_bytes"]
    assert "all_gather row gradients" not in sent
    assert ("all_to_all gradients of rows" not in sent) & ("all_to_all ids" in sent)
    assert any(kind.startswith("reduce_scatter") for kind in sent) == (not name.startswith("dlrm"))


@pytest.mark.parametrize("name", CASES)
def test_the_log_names_what_was_chosen_for_each_operator_and_its_bytes(name, told):
    for number, ranks in told[2].items():
        assert not ranks[1][1][name]  # the first alone talks
        (text,) = ranks[0][1][name]
        first, *lines, ids = text.splitlines()
        assert f"tables by id on {number} ranks, about" in first
        assert [line.partition(",")[0] for line in lines] == CHOSEN[name]
        assert all("kB of values a step a rank (" in line for line in lines)
        assert "ids: " in ids


@pytest.mark.parametrize("name", HALVED)
def test_a_checkpoint_goes_on_on_fewer_ranks(name, told):
    one, _, found, last = told
    require_alike([found[2][0][4][name]], one[name])
    require_alike([last[name]], one[name])


def test_a_warm_start_carries_moments_both_ways_and_frozen_weights_stay(told):
    _, (curve, weights, record), found, _ = told
    for ranks in found.values():
        warm_curve, warm_weights, warm_record = ranks[0][3]
        assert warm_curve[-1]["valid_loss"] == pytest.approx(curve[-1]["valid_loss"], rel=CURVE["rtol"])
        assert warm_weights.keys() == weights.keys()
        for name, value in weights.items():
            torch.testing.assert_close(warm_weights[name], value, **WEIGHTS)
        assert warm_weights["linear.bias"].abs().sum() == 0
        assert warm_record.kinds == record.kinds
        assert warm_record.moments.keys() == record.moments.keys()
        for name, state in record.moments.items():
            assert warm_record.moments[name].keys() == state.keys()
            for key, value in state.items():
                torch.testing.assert_close(warm_record.moments[name][key], value, **WEIGHTS)


@pytest.mark.parametrize("name", REFUSED)
def test_what_des_cannot_spread_is_refused_by_name_on_all_ranks(name, told):
    for ranks in told[2].values():
        for _, _, refused, *_ in ranks:
            assert REFUSED[name][1] in refused[name]
