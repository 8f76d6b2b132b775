"""TabularModel against fastai's TabularModel, recorded by data/make_fastai_reference.py with its weights."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from gigabatch.models.inputs import ModelInputs
from gigabatch.models.layers.batch_norm import BatchNorm1d
from gigabatch.models.layers.dropout import Dropout
from gigabatch.models.tabular.tabular import TabularModel, TabularSettings

RECORDED = Path(__file__).parents[1] / "data" / "fastai_tabular.npz"
CASES = (
    "batch_norm",
    "no_batch_norm",
    "output_range",
    "several_outputs_last_norm",
    "batch_norm_first",
    "no_ids",
    "no_floats",
    "given_widths",
)
SMALL = ModelInputs((5, 4), 2), TabularSettings(layers=(6,))


def our_name(fastai_name: str) -> str:
    """Name in our state dict of one in fastai's."""
    if fastai_name.startswith("embeds."):
        return f"embeddings.tables.{fastai_name.split('.')[1]}"
    return fastai_name.replace("bn_cont.", "float_norm.")


class Recording:
    """One case of the file: a model with fastai's weights, and what fastai computed with it."""

    def __init__(self, case: str) -> None:
        with np.load(RECORDED) as file:
            self.arrays = {key.removeprefix(f"{case}/"): file[key] for key in file if key.startswith(f"{case}/")}
        settings = json.loads(str(self.arrays["config"]))
        inputs = ModelInputs(*(settings.pop(name) for name in ("num_ids", "num_floats", "num_outputs")))
        self.model = TabularModel(inputs, TabularSettings(**settings, batch_norm_eps=1e-5))
        self.model.load_state_dict(self.section("weights"))
        self.ids = torch.from_numpy(self.arrays["ids"]).int()
        self.floats = torch.from_numpy(self.arrays["floats"])

    def section(self, what: str) -> dict[str, torch.Tensor]:
        """Tensors recorded under `what`, by our names; fastai's batch norm of no columns is left out."""
        found = {key.split("/")[1]: value for key, value in self.arrays.items() if key.startswith(f"{what}/")}
        return {
            our_name(name): torch.from_numpy(np.asarray(value))
            for name, value in found.items()
            if self.model.inputs.num_floats or not name.startswith("bn_cont.")
        }


@pytest.fixture(params=CASES)
def recording(request):
    return Recording(request.param)


def test_every_recorded_case_is_tested():
    with np.load(RECORDED) as file:
        assert {key.split("/")[0] for key in file} == set(CASES)


def test_evaluation_outputs_equal_fastais(recording):
    outputs = recording.model.eval()(recording.ids, recording.floats)
    np.testing.assert_allclose(outputs.detach().numpy(), recording.arrays["outputs_eval"], rtol=1e-6, atol=1e-6)


def test_training_outputs_gradients_and_running_statistics_equal_fastais(recording):
    model = recording.model.train()
    outputs = model(recording.ids, recording.floats)
    np.testing.assert_allclose(outputs.detach().numpy(), recording.arrays["outputs_train"], rtol=1e-6, atol=1e-6)

    nn.functional.mse_loss(outputs, torch.from_numpy(recording.arrays["targets"])).backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    torch.testing.assert_close(gradients, recording.section("gradients"), rtol=1e-5, atol=1e-5)
    own = {name: buffer for name, buffer in model.named_buffers() if not name.endswith("batch_rows")}
    torch.testing.assert_close(own, recording.section("buffers_after"), rtol=1e-6, atol=1e-6)


def test_batch_norm_starts_as_fastais():
    model = TabularModel(*SMALL)
    assert model.layers[0][2].bias.tolist() == pytest.approx([1e-3] * 6)
    assert model.layers[0][2].weight.tolist() == [1.0] * 6
    assert model.float_norm.bias.tolist() == [0.0, 0.0]


def test_a_unit_that_fires_for_few_rows_is_not_far_larger_for_another():
    """Two of 2,000 rows fire at .01: a variance of 1e-7, with which 1e-5 would make 150 of another row's .5."""
    model = TabularModel(ModelInputs((), 1), TabularSettings(layers=(1,), batch_norm_floats=False, numeric="plain"))
    linear, _, norm = model.layers[0]
    values = torch.zeros(2_000, 1)
    values[:2] = 0.01
    with torch.no_grad():
        linear.weight.fill_(1.0)
        norm.momentum = 1.0
        model.train().layers[0](values)
        (found,) = model.eval().layers[0](torch.tensor([[0.5]]))
    assert float(found) == pytest.approx(0.5 / np.sqrt(1e-3), rel=1e-2)


def test_dropout_stands_after_the_batch_norm_of_each_layer():
    settings = TabularSettings(layers=(6, 4), dropout=(0.25, 0.0))
    first, second, last = TabularModel(ModelInputs((), 2), settings).layers
    assert [type(module) for module in first] == [nn.Linear, nn.ReLU, BatchNorm1d, Dropout]
    assert first[3].p == 0.25
    assert [type(module) for module in second] == [nn.Linear, nn.ReLU, BatchNorm1d]
    assert [type(module) for module in last] == [nn.Linear]


def test_embedding_dropout_acts_on_embeddings_alone_and_only_in_training():
    settings = TabularSettings(embedding_dropout=0.5, batch_norm_floats=False)
    model = TabularModel(ModelInputs((50,), 1), settings)
    model.layers = nn.Identity()  # shows what enters the layers
    ids, floats = torch.zeros(400, 1, dtype=torch.int32), torch.ones(400, 1)
    torch.manual_seed(0)
    trained, evaluated = model.train()(ids, floats), model.eval()(ids, floats)
    dropped = trained[:, :-1] == 0
    assert 0.45 < dropped.float().mean() < 0.55
    torch.testing.assert_close(trained[:, :-1][~dropped], 2 * evaluated[:, :-1][~dropped])
    torch.testing.assert_close(trained[:, -1], floats[:, 0])


def test_outputs_are_float32_under_bfloat16_autocast():
    model = TabularModel(*SMALL).eval()
    ids, floats = torch.zeros(4, 2, dtype=torch.int32), torch.randn(4, 2)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = model(ids, floats)
    assert outputs.dtype == torch.float32
    torch.testing.assert_close(outputs, model(ids, floats), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("case", CASES)
def test_outputs_on_any_device_equal_fastais(case, any_device):
    recording = Recording(case)
    model = recording.model.to(any_device).eval()
    outputs = model(recording.ids.to(any_device), recording.floats.to(any_device))
    assert outputs.device.type == any_device
    np.testing.assert_allclose(outputs.detach().cpu().numpy(), recording.arrays["outputs_eval"], rtol=1e-4, atol=1e-4)
