"""Trainings of several ranks whose dense gradients are compressed (`train.gradients`)."""

import shutil
from pathlib import Path

import pytest
import torch

from gigabatch.models.parallel.ranks import Ranks
from gigabatch.pipeline.store.keys import BLAKE2B, file_checksum
from gigabatch.pipeline.training.checkpoint import checksum_file
from tests.models.parallel.together import together
from tests.pipeline.training.test_train_ranks import trained, without_bytes

DCT = {"compress": "dct", "drop": 0.9, "refresh_steps": 4, "values": "bfloat16"}
STEPS = 5  # an epoch


def case(gradients, **rest):
    model = ("tabular", {"layers": [32, 16], "dropout": 0.2})
    return {"model": model, "train": {"kernels": "reference", "gradients": gradients}} | rest


CASES = {
    "none": case({}),
    "dct": case(DCT),
    "dct, a row that is not a number": case(DCT, nan=True),
    "dct, float16 products": case(DCT) | {"train": {"gradients": DCT, "precision": "float16", "kernels": "reference"}},
    "none, lists": case({}, lists=True),
    "dct, lists": case(DCT, lists=True),
    "bfloat16": case({"compress": "bfloat16"}),
    "float16": case({"compress": "float16"}),
}


REFUSED = {
    "more bytes": case({"compress": "dct", "drop": 0.0, "values": "float32"}),
    "left": CASES["none"],  # its checkpoint holds what DCT had not sent
}


def runs_of(ranks: Ranks, folder: Path, half: Path):
    """On two ranks all cases, and those that are refused; on any number the rest of a training by DCT, from a
    checkpoint that two ranks wrote within the second epoch, with and without what they had not sent."""
    two, found, refused = ranks.num_ranks == 2, {}, {}
    if two:
        assert trained(ranks, half / "left", CASES["dct"], 8) is None
        if ranks.is_first:
            shutil.copytree(half / "left", half / "nothing left")
            forget_residuals(half / "nothing left" / "checkpoint.pt")
            shutil.copytree(half / "left", folder / "refused" / "left")
        ranks.barrier()
        found = {name: trained(ranks, folder / name, one) for name, one in CASES.items()}
    elif ranks.num_ranks == 1:
        found = {name: trained(ranks, folder / name, CASES[name]) for name in ("none", "dct")}
    for name in ("left", "nothing left"):
        if ranks.is_first:
            shutil.copytree(half / name, folder / f"from {name}")
        ranks.barrier()
        found[name] = trained(ranks, folder / f"from {name}", CASES["dct"])
    for name, one in REFUSED.items() if two else ():
        try:
            trained(ranks, folder / "refused" / name, one)
        except ValueError as error:
            refused[name] = str(error)
    return found, refused


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gradients")
    return {number: together(runs_of, number, folder, folder / str(number), folder / "half") for number in (2, 1, 3)}


@pytest.fixture(scope="module")
def runs(told):
    """By number of ranks, what each of them found."""
    return {number: [found for found, _ in ranks] for number, ranks in told.items()}


def forget_residuals(path: Path) -> None:
    content = torch.load(path, weights_only=True)
    assert content["gradients"]
    for one in content["gradients"].values():
        assert one["residuals"].shape[0] == 2
        assert one["residuals"].abs().sum() > 0
        one["residuals"].zero_()
    torch.save(content, path)
    checksum_file(path).write_text(file_checksum(path, BLAKE2B))


def same_bits(first, second) -> bool:
    return all(torch.equal(first[1][name], value) for name, value in second[1].items())


def test_one_rank_trains_as_ever_to_the_bit(runs):
    (found,) = runs[1]
    assert found["dct"][0] == found["none"][0]
    assert same_bits(found["dct"], found["none"])


@pytest.mark.parametrize("name", CASES)
def test_all_ranks_have_the_same_bits_and_learn(name, runs):
    first, second = (told[name] for told in runs[2])
    assert first[0] == second[0]
    assert first[2] == second[2]
    assert same_bits(first, second)
    assert first[2][2] == (2 if CASES[name].get("nan") else 0)
    assert all(value.isfinite().all() for value in first[1].values())
    losses = [point["valid_loss"] for point in first[0] if "valid_loss" in point]
    alike = runs[2][0]["none, lists" if CASES[name].get("lists") else "none"]
    plain = [point["valid_loss"] for point in alike[0] if "valid_loss" in point]
    assert losses[-1] == pytest.approx(plain[-1], abs=0.05)
    if not name.startswith("none"):
        assert without_bytes(first[0]) != without_bytes(alike[0])  # something was left out


def test_bytes_of_an_epoch_show_what_was_saved(runs):
    weights, sent = runs[2][0]["none"][1], {name: found[0][-1]["sent_bytes"] for name, found in runs[2][0].items()}
    dense = {
        name: value.numel()
        for name, value in weights.items()
        if "tables" not in name and "running" not in name and "batch" not in name
    }
    total = 2 * STEPS * 4 * sum(dense.values())  # of both ranks: 2 (N - 1) / N is 1
    assert sent["none"]["all_reduce gradients"] == total
    assert sent["bfloat16"]["all_reduce gradients"] == sent["float16"]["all_reduce gradients"] == total / 2
    large = [number for number in dense.values() if number >= 256]
    assert sent["dct"]["all_reduce gradients"] == total - 2 * STEPS * 4 * sum(large)
    # A tenth, twice as much at most, of 2 bytes and the 1 of a place.
    sparse = sent["dct"]["all_gather sparse gradients"]
    assert 2 * STEPS * 0.1 * 2 * sum(large) < sparse < 2 * STEPS * 0.2 * 3 * sum(large) + 100
    assert "all_gather sparse gradients" not in sent["none"]


def test_a_checkpoint_goes_on_bit_for_bit_on_the_same_number_of_ranks(runs):
    found = runs[2][0]
    assert without_bytes(found["left"][0]) == without_bytes(found["dct"][0])
    assert same_bits(found["left"], found["dct"])
    assert not same_bits(found["nothing left"], found["dct"])


@pytest.mark.parametrize("number", [1, 3])
def test_another_number_of_ranks_goes_on_with_what_was_not_sent(number, runs):
    first = runs[number][0]["left"]
    assert all(same_bits(told["left"], first) for told in runs[number])
    assert first[2] == runs[2][0]["dct"][2]
    assert not same_bits(first, runs[number][0]["nothing left"])
    both = first[0], runs[2][0]["dct"][0]
    losses = [[point["valid_loss"] for point in curve if "valid_loss" in point] for curve in both]
    assert losses[0][0] == losses[1][0]
    assert losses[0][1] == pytest.approx(losses[1][1], abs=0.02)


def test_what_cannot_win_and_a_checkpoint_of_dct_without_it_are_refused_on_all_ranks(told):
    for _, refused in told[2]:
        assert "drop=0 sends 1.03 times the bytes" in refused["more bytes"]  # 2 (4 + 1 / 8) against 8
        assert "saved with train.gradients.compress=dct" in refused["left"]


def test_pieces_of_a_batch_are_weighed_on_one_rank_with_dct_too(tmp_path):
    """One rank sends nothing, so the setting changes no bit."""
    plain, dct = (
        trained(Ranks(), tmp_path / name, {
            "model": ("tabular", {"layers": [8]}), "weighted": True,
            "train": {"epochs": 1, "accumulate_steps": 3, "kernels": "reference", "gradients": gradients},
        })
        for name, gradients in (("plain", {}), ("dct", DCT))
    )  # fmt: skip
    assert without_bytes(dct[0]) == without_bytes(plain[0])
    assert same_bits(dct, plain)
