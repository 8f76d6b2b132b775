"""train.ensemble: members of other seeds, their mean, and what a kill, a warm start and refusals make of them."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from gigabatch.models.click.lr import LogisticRegression
from gigabatch.models.ensemble import Ensemble
from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.losses import RegressionLoss, TargetLoss
from gigabatch.models.model import Model, TargetScale
from gigabatch.models.shelf import ModelSpec, model_class, spec_of
from gigabatch.pipeline.bundle import load_bundle
from gigabatch.pipeline.config.config import ConfigError, RunConfig, TrainSettings, parse_config
from gigabatch.pipeline.export.export import export_bundle
from gigabatch.pipeline.stages import stages
from gigabatch.pipeline.stages.finished import Run, stage_rows
from gigabatch.pipeline.stages.stages import Pipeline
from gigabatch.pipeline.training.calibration import fit_curves
from gigabatch.pipeline.training.checkpoint import TrainingError
from gigabatch.pipeline.training.ensemble import member_seed
from gigabatch.pipeline.training.train import train_model

TWO = "train.ensemble=2"


def weights(run: Run) -> dict[str, torch.Tensor]:
    return load_file(run.path / "model" / "weights.safetensors")


def test_the_probability_is_the_mean_of_runs_alone_with_the_members_seeds(tiny):
    ensemble = tiny.train(TWO)
    seeds = ensemble.summary["ensemble"]["seeds"]
    assert seeds == [1, member_seed(1, 1)]
    alone = [tiny.train(f"seed={seed}") for seed in seeds]
    frame = tiny.pipeline().features().frame("test")
    expected = np.mean([run.bundle().predict(frame)["clicked"].to_numpy(np.float64) for run in alone], axis=0)
    np.testing.assert_allclose(ensemble.bundle().predict(frame)["clicked"].to_numpy(), expected, atol=1e-6)
    found, losses = weights(ensemble), []
    for number, run in enumerate(alone):
        own = weights(run)
        assert own
        assert all(torch.equal(found[f"members.{number}.{name}"], value) for name, value in own.items())
        losses.append(min(point["valid_loss"] for point in run.curve if "valid_loss" in point))
        points = [point for point in ensemble.curve if point["member"] == number]
        assert [{k: v for k, v in point.items() if k != "member"} for point in points] == run.curve
    told = ensemble.summary["ensemble"]
    assert told["valid_losses"] == losses
    labels = tiny.pipeline().features().frame("valid")
    p = np.mean([run.bundle().predict(labels)["clicked"].to_numpy(np.float64) for run in alone], axis=0)
    y = labels["clicked"].to_numpy()
    assert told["valid_loss"] == pytest.approx(-np.mean(np.log(np.where(y == 1, p, 1 - p))), rel=1e-5)
    rows = {(row["split"], row["member"]): row for row in ensemble.summary["members"]}
    for number, run in enumerate(alone):
        assert rows["test", str(number)]["auc"] == pytest.approx(run.summary["metrics"]["test"]["auc"], rel=1e-12)
    assert rows["test", "ensemble"]["auc"] == ensemble.summary["auc"]
    trained = ensemble.summary["trained"]
    assert trained["members"] == 2
    assert trained["rows"] == sum(run.summary["trained"]["rows"] for run in alone)
    (train,) = (row for row in stage_rows(ensemble.summary, ()) if row["stage"] == "train")
    assert train["note"] == "4 epochs; of 2 members together"
    assert ensemble.summary["seconds"]["train"] >= sum(told["seconds"])
    page = (ensemble.path / "report.html").read_text()
    assert "<h2>Members of the ensemble</h2>" in page
    assert "with several targets each metric is the mean over those that have it" in page
    assert tiny.train(TWO).skipped == ("features", "encode", "train", "evaluate")


def test_one_member_is_the_run_of_before_by_the_same_key(tiny):
    alone, one, two = (
        tiny.pipeline(*asked).features().encode().train_key for asked in ((), ("train.ensemble=1",), (TWO,))
    )
    assert alone == one != two
    description = json.loads((tiny.train().path / "model" / "bundle.json").read_text())["model"]
    assert "members" not in description  # as bundles of before


@pytest.mark.parametrize("step", [9 + 14, 9])  # in the middle of the second member's training, and early in the first's
def test_a_killed_training_goes_on_with_the_member_that_it_was_at(tiny, tiny_in, tmp_path, monkeypatch, step):
    settings = (TWO, "train.checkpoint_every_steps=4")
    whole = tiny_in(tmp_path / "whole")
    shutil.copytree(tiny.raw, whole.raw, dirs_exist_ok=True)
    expected = whole.train(*settings)
    real, begun = stages.train_model, []

    def killed(*arguments, **named):
        begun.append(named["folder"].name)
        first = 18 * (len(begun) - 1)

        def stop(done: int) -> None:
            if first + done == step + 5:
                raise RuntimeError("the machine went away")

        return real(*arguments, **named, after_step=stop)

    monkeypatch.setattr(stages, "train_model", killed)
    with pytest.raises(RuntimeError, match="went away"):
        tiny.train(*settings)
    at = begun[-1]
    begun.clear()
    monkeypatch.setattr(
        stages, "train_model", lambda *a, **named: (begun.append(named["folder"].name), real(*a, **named))[1]
    )
    run = tiny.train(*settings)
    assert begun == [name for name in ("member-0", "member-1") if name >= at]
    found, other = weights(run), weights(expected)
    assert found.keys() == other.keys()
    assert all(torch.equal(found[name], other[name]) for name in found)
    assert (run.path / "metrics.jsonl").read_bytes() == (expected.path / "metrics.jsonl").read_bytes()
    for name in ("optimizer.safetensors", "optimizer.json"):
        assert (run.path / "training" / name).read_bytes() == (expected.path / "training" / name).read_bytes()
    assert run.summary["trained"]["earlier_rows"] > 0
    assert tiny.hidden() == []


def killed_in_the_second(tiny, monkeypatch):
    """Train an ensemble that ends as its second member begins; the members' folders, in the order they were begun."""
    real, begun = stages.train_model, []

    def killed(*arguments, **named):
        begun.append(named["folder"])
        if len(begun) > 1:
            raise RuntimeError("the machine went away")
        return real(*arguments, **named)

    monkeypatch.setattr(stages, "train_model", killed)
    with pytest.raises(RuntimeError, match="went away"):
        tiny.train(TWO)
    return begun


def test_a_damaged_member_is_told_of_before_the_others_are_trained(tiny, monkeypatch):
    begun = killed_in_the_second(tiny, monkeypatch)
    path = begun[0] / "member.pt"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)
    with pytest.raises(TrainingError, match=r"member\.pt: damaged"):
        tiny.train(TWO)
    assert len(begun) == 2


def test_a_member_in_the_folder_of_another_is_refused(tiny, monkeypatch):
    begun = killed_in_the_second(tiny, monkeypatch)
    other = begun[0].with_name("member-1")
    for path in begun[0].glob("member.pt*"):
        shutil.copy(path, other / path.name)
    with pytest.raises(TrainingError, match=r"member\.pt: saved by another run .*/member-0, this is .*/member-1"):
        tiny.train(TWO)


def test_calibration_is_fitted_to_the_mean_and_not_to_members(tiny):
    plain, calibrated = tiny.train(TWO), tiny.train(TWO, "train.calibration=temperature")
    bundle, encoded = plain.bundle(), tiny.pipeline().features().encode()
    valid = encoded.table("valid")
    rows = valid.unpack(valid.words)
    with torch.inference_mode():
        p = np.mean(
            [torch.sigmoid(m(rows.ids, rows.floats)[:, 0]).double().numpy() for m in bundle.model.models], axis=0
        )
    logits = torch.from_numpy(np.log(p) - np.log1p(-p))[:, None]
    (curve,) = fit_curves("temperature", valid.schema.targets, logits, rows.targets)
    model = calibrated.bundle().model
    assert model.calibration[0].slope == pytest.approx(curve.slope, rel=1e-4)
    assert all(not member.calibration for member in model.models)
    frame = tiny.pipeline().features().frame("test")
    p = bundle.predict(frame)["clicked"].to_numpy(np.float64)
    moved = 1 / (1 + np.exp(-curve.slope * (np.log(p) - np.log1p(-p))))
    np.testing.assert_allclose(calibrated.bundle().predict(frame)["clicked"], moved, atol=5e-5)


def test_a_prior_is_of_the_mean(tiny):
    plain, moved = tiny.train(TWO), tiny.train(TWO, "train.prior.negatives_kept=0.1")
    frame = tiny.pipeline().features().frame("test")
    p, q = (run.bundle().predict(frame)["clicked"].to_numpy(np.float64) for run in (plain, moved))
    np.testing.assert_allclose(np.log(q) - np.log1p(-q), np.log(p) - np.log1p(-p) + np.log(0.1), atol=1e-4)


def test_a_warm_start_takes_each_member_on_and_another_number_is_refused(tiny):
    first = tiny.train(TWO, "train.ema_decay=0.9")
    same = tiny.train(
        TWO, "train.ema_decay=0.9", "train.epochs=0", f"train.start_from={first.path}", "preprocess.from=latest"
    )
    one, other = weights(first), weights(same)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    record = json.loads((first.path / "training" / "optimizer.json").read_text())
    assert len(record["ema_updates"]) == 2
    assert min(record["ema_updates"]) > 0
    warm = tiny.train(
        TWO, "train.ema_decay=0.9", f"train.start_from={first.path}", "preprocess.from=latest", "train.epochs=1"
    )
    assert warm.summary["started"]["moments"] == "carried"
    assert warm.summary["started"]["warm_starts"] == 1
    for ask, told in (("train.ensemble=3", "train.ensemble 2, now 3"), ("train.ensemble=1", "train.ensemble 2, now 1")):
        with pytest.raises(TrainingError, match=told):
            tiny.train(ask, f"train.start_from={first.path}", "preprocess.from=latest")
    cold = tiny.train(
        "train.ensemble=1", f"train.start_from={first.path}", "preprocess.from=latest", "train.changed=cold"
    )
    assert any("Trained cold" in text for text in cold.summary["notes"])


def test_an_export_gives_the_mean(tiny, tmp_path):
    bundle = tiny.train(TWO, "train.calibration=isotonic").bundle()
    found = export_bundle(bundle, tmp_path / "out", ["torch", "onnx_rows"])  # each is compared with the bundle
    assert [item.format for item in found] == ["torch", "onnx_rows"]


def test_what_does_not_go_together_is_refused():
    with pytest.raises(ValueError, match=r"ensemble: groups of codistill"):
        TrainSettings(ensemble=2, codistill={"groups": 2})
    with pytest.raises(ConfigError, match=r"train\.ensemble: .*greater than or equal to 1 .*0"):
        parse_config({"name": "x", "recipe": "flights", "train": {"ensemble": 0}})
    with pytest.raises(TrainingError, match=r"train\.ensemble: train_model trains one model"):
        train_model(None, None, None, None, TrainSettings(ensemble=2), seed=1, device="cpu", folder=None)


def test_a_calibration_that_cannot_be_is_refused_before_any_training(shop, monkeypatch):
    monkeypatch.setattr(stages, "train_model", None)
    with pytest.raises(ConfigError, match=r"train\.calibration=isotonic"):
        Pipeline(shop({"kind": {"task": "multiclass"}}, {"calibration": "isotonic"})).train()


@pytest.fixture
def shop(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(3)
    x, city = draw.normal(size=1500), draw.integers(0, 6, 1500)
    score = x + np.sin(city)
    rows = pd.DataFrame({"x": x, "city": [f"c{value}" for value in city]})
    rows["kind"] = np.array(["a", "b", "c"])[np.digitize(score + draw.normal(size=1500), [-0.5, 0.8])]
    rows["value"] = 500 + 20 * score + draw.normal(size=1500)
    rows["count"] = draw.poisson(np.exp(0.5 * score))
    rows["clicked"] = (score + draw.normal(size=1500) > 0).astype(int)
    rows.to_csv("shop.csv", index=False)

    def config(targets, train, seed=1):
        features = {"path": "shop.csv", "categorical": ["city"], "continuous": ["x"], "targets": targets}
        return RunConfig(
            name="shop", recipe="table", device="cpu", engine="pandas", features=features, seed=seed,
            model={"kind": "lr"}, train={"epochs": 1, "batch_size": 64, "ensemble": 2} | train,
            evaluate={"importance": False, "baselines": []},
        )  # fmt: skip

    return config


TARGETS = {
    "multiclass": ({"kind": {"task": "multiclass"}}, {}),
    "regression": ({"value": {"task": "regression"}}, {}),
    "quantiles": ({"value": {"task": "regression", "quantiles": [0.1, 0.5, 0.9]}}, {}),
    "counts": ({"count": {"task": "regression"}}, {"losses": {"count": {"kind": "poisson"}}}),
    "several": ({"clicked": {"task": "binary"}, "value": {"task": "regression"}}, {"prior": {"negatives_kept": 1.0}}),
}


@pytest.mark.parametrize("name", list(TARGETS))
def test_predictions_of_every_task_are_the_means_of_the_members(shop, name):
    targets, train = TARGETS[name]
    run = Pipeline(shop(targets, train)).train()
    frame = Pipeline(shop(targets, train)).features().frame("test")
    alone = [
        Pipeline(shop(targets, train | {"ensemble": 1}, seed)).train().bundle().predict(frame)
        for seed in run.summary["ensemble"]["seeds"]
    ]
    found = run.bundle().predict(frame)
    expected = np.mean([one.to_numpy(np.float64) for one in alone], axis=0)
    np.testing.assert_allclose(found.to_numpy(np.float64), expected, rtol=1e-6, atol=1e-6)
    assert np.abs(alone[0].to_numpy(np.float64) - alone[1].to_numpy(np.float64)).max() > 1e-4


# The model


def lr(num_outputs=1, targets=(("binary", 1),), **inputs) -> LogisticRegression:
    made = LogisticRegression(
        ModelInputs((5,), 1, num_outputs, targets=targets, **inputs), LogisticRegression.Settings()
    )
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return made.eval()


def test_quantiles_are_sorted_before_the_mean_as_members_predict_them():
    scales = [TargetScale(0, output, 10.0, 2.0) for output in range(3)]
    model = Ensemble([lr(3, (("regression", 3),)) for _ in range(4)])
    model.scale_targets(scales)
    ids, floats = torch.randint(0, 5, (50, 1)), torch.randn(50, 1)
    with torch.inference_mode():
        members = [np.sort(10 + 2 * member(ids, floats).double().numpy(), axis=1) for member in model.models]
        found = model.in_target_units(model(ids, floats)).numpy()
    np.testing.assert_allclose(found, np.mean(members, axis=0), rtol=1e-6)
    with pytest.raises(ModelError, match="one scale for all quantiles"):
        model.scale_targets([*scales[:2], TargetScale(0, 2, 10.0, 3.0)])


def test_a_description_brings_an_ensemble_back_and_older_ones_are_single_models():
    model = Ensemble([lr(), lr(), lr()])
    raw = json.loads(json.dumps(spec_of(model).to_dict(), allow_nan=False))
    back = ModelSpec.from_dict(raw).build().eval()
    back.load_state_dict(model.state_dict())
    rows = torch.tensor([[3], [1]]), torch.tensor([[0.5], [7.0]])
    assert torch.equal(back(*rows), model(*rows))
    assert ModelSpec.from_dict({name: value for name, value in raw.items() if name != "members"}).members == 1
    for wrong in (0, "two", 1.5):
        with pytest.raises(ModelError, match="members"):
            ModelSpec.from_dict(raw | {"members": wrong})


def test_members_that_do_not_belong_together_are_refused():
    with pytest.raises(ModelError, match="two members and more"):
        Ensemble([lr()])
    with pytest.raises(ModelError, match="of one kind"):
        Ensemble([lr(), model_class("fm")(lr().inputs, model_class("fm").Settings())])
    with pytest.raises(ModelError, match="cannot be an ensemble"):
        Ensemble([Ensemble([lr(), lr()]), lr()])
    with pytest.raises(ModelError, match="must know its targets"):
        Ensemble([lr(targets=()), lr(targets=())])
    with pytest.raises(ModelError, match="Train its members"):
        Ensemble([lr(), lr()]).training_loss(None, TargetLoss([("regression", 1)], [RegressionLoss()]))


def test_models_trained_on_other_rows_have_other_units_and_are_no_members():
    one, other = (lr(targets=(("regression", 1),)) for _ in range(2))
    one.scale_targets([TargetScale(0, 0, 10.0, 2.0)])
    for scales in ([TargetScale(0, 0, 500.0, 2.0)], []):
        other.scale_targets(scales)
        for members in ([one, other], [other, one]):
            with pytest.raises(ModelError, match="one scale of each target"):
                Ensemble(members)
    assert other.target_scales == ()  # as it was


class FirstFloat(Model):
    """A model of a user's own, as in the docs of `Model`."""

    Settings = LogisticRegression.Settings

    def forward(self, ids, floats):
        return floats[:, :1]


def test_members_without_a_place_for_lists_are_called_without_them():
    inputs = ModelInputs((5,), 1, targets=(("regression", 1),))
    model = Ensemble([FirstFloat(inputs, FirstFloat.Settings()) for _ in range(2)])
    assert model(torch.tensor([[3]]), torch.tensor([[0.5]])).item() == 0.5


def test_a_bundle_keeps_the_ensemble(tiny):
    run = tiny.train(TWO)
    bundle = load_bundle(run.path / "model")
    assert isinstance(bundle.model, Ensemble)
    assert bundle.info["members"] == {"seeds": [1, member_seed(1, 1)]}
