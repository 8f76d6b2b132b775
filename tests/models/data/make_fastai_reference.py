"""Record what fastai's TabularModel and one-cycle schedule compute, for test_tabular_model.py and test_schedule.py.

Run once in a throw-away environment, from the root of the repository:

    python3 -m venv /tmp/venv-fastai
    /tmp/venv-fastai/bin/pip install torch==2.13.0 'pandas<3' scipy scikit-learn pyyaml pillow matplotlib packaging \
        requests typing_extensions beartype rich cloudpickle
    /tmp/venv-fastai/bin/pip install --no-deps fastai==2.8.12 fastcore==2.2.39 'fastprogress<1.1' \
        'plum-dispatch<2.10' fasttransform fastdownload
    /tmp/venv-fastai/bin/python tests/models/data/make_fastai_reference.py

It writes fastai_tabular.npz and fastai_onecycle.npz beside itself. Keys are `case/what/name`; `config` is JSON.
"""

import json
from pathlib import Path

import numpy as np
import torch
from fastai.callback.schedule import combined_cos  # noqa: F401  (patches fit_one_cycle onto Learner)
from fastai.learner import Learner
from fastai.tabular.all import DataLoader, DataLoaders, TabularModel, emb_sz_rule
from torch import nn

HERE = Path(__file__).parent
ROWS = 32
CATEGORIES = (40, 7, 3)

# Names are those of our ModelInputs and TabularSettings; `fastai_arguments` translates them.
CASES: dict[str, dict] = {
    "batch_norm": {"num_ids": CATEGORIES, "num_floats": 5, "num_outputs": 1, "layers": (20, 10)},
    "no_batch_norm": {
        "num_ids": CATEGORIES,
        "num_floats": 5,
        "num_outputs": 1,
        "layers": (20, 10),
        "batch_norm": False,
        "batch_norm_floats": False,
    },
    "output_range": {
        "num_ids": CATEGORIES,
        "num_floats": 2,
        "num_outputs": 1,
        "layers": (12,),
        "output_range": (-0.5, 5.5),
    },
    "several_outputs_last_norm": {
        "num_ids": CATEGORIES,
        "num_floats": 3,
        "num_outputs": 4,
        "layers": (16, 8),
        "batch_norm_last": True,
    },
    "batch_norm_first": {
        "num_ids": CATEGORIES,
        "num_floats": 3,
        "num_outputs": 2,
        "layers": (16, 8),
        "linear_first": False,
    },
    "no_ids": {"num_ids": (), "num_floats": 6, "num_outputs": 2, "layers": (12, 6)},
    "no_floats": {"num_ids": CATEGORIES, "num_floats": 0, "num_outputs": 1, "layers": (12, 6)},
    "given_widths": {
        "num_ids": CATEGORIES,
        "num_floats": 2,
        "num_outputs": 1,
        "layers": (8,),
        "embedding_widths": (3, 5, 1),
    },
}


def build(config: dict) -> TabularModel:
    widths = config.get("embedding_widths") or [emb_sz_rule(size) for size in config["num_ids"]]
    model = TabularModel(
        list(zip(config["num_ids"], widths, strict=True)),
        config["num_floats"],
        config["num_outputs"],
        list(config["layers"]),
        y_range=config.get("output_range"),
        use_bn=config.get("batch_norm", True),
        bn_final=config.get("batch_norm_last", False),
        bn_cont=config.get("batch_norm_floats", True),
        lin_first=config.get("linear_first", True),
    )
    with torch.no_grad():  # away from the initial ones and zeros, which would hide a swapped scale and shift
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
        for name, buffer in model.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer.add_(torch.rand_like(buffer))
    return model


def record(config: dict, seed: int) -> dict[str, np.ndarray]:
    torch.manual_seed(seed)
    model = build(config)
    ids = torch.stack([torch.randint(size, (ROWS,)) for size in config["num_ids"]], 1) if config["num_ids"] else None
    ids = torch.zeros(ROWS, 0, dtype=torch.int64) if ids is None else ids
    floats = torch.randn(ROWS, config["num_floats"]) * 3 + 1
    targets = torch.randn(ROWS, config["num_outputs"])
    arrays = {"config": np.array(json.dumps(config)), "ids": ids.numpy(), "floats": floats.numpy()}
    arrays["targets"] = targets.numpy()
    for name, value in model.state_dict().items():
        arrays[f"weights/{name}"] = value.clone().numpy()

    arrays["outputs_eval"] = model.eval()(ids, floats).detach().numpy()
    outputs = model.train()(ids, floats)
    nn.functional.mse_loss(outputs, targets).backward()
    arrays["outputs_train"] = outputs.detach().numpy()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            arrays[f"gradients/{name}"] = parameter.grad.numpy()
    for name, buffer in model.named_buffers():
        arrays[f"buffers_after/{name}"] = buffer.numpy()
    return arrays


def one_cycle(num_epochs: int, num_batches: int, **arguments: float) -> dict[str, np.ndarray]:
    """lr and momentum of every batch, as a real Learner recorded them."""
    data = [(torch.randn(1), torch.randn(1)) for _ in range(num_batches * 2)]
    loaders = DataLoaders(DataLoader(data, bs=2), DataLoader(data[:2], bs=2))
    learner = Learner(loaders, nn.Linear(1, 1), loss_func=nn.MSELoss())
    with learner.no_bar(), learner.no_logging():
        learner.fit_one_cycle(num_epochs, **arguments)
    hypers = learner.recorder.hps
    return {
        "arguments": np.array(json.dumps({"num_steps": num_epochs * num_batches, **arguments})),
        "lr": np.array(hypers["lr"], dtype=np.float64).reshape(-1),
        "mom": np.array(hypers["mom"], dtype=np.float64).reshape(-1),
    }


def save(path: Path, cases: dict[str, dict[str, np.ndarray]]) -> None:
    np.savez_compressed(
        path, **{f"{case}/{key}": value for case, arrays in cases.items() for key, value in arrays.items()}
    )
    print(path, path.stat().st_size, "bytes")


if __name__ == "__main__":
    save(HERE / "fastai_tabular.npz", {name: record(config, seed) for seed, (name, config) in enumerate(CASES.items())})
    save(
        HERE / "fastai_onecycle.npz",
        {
            "defaults": one_cycle(2, 20, lr_max=1e-2),
            "own": one_cycle(3, 11, lr_max=0.3, pct_start=0.4, div=10.0, div_final=1e3, moms=(0.9, 0.7, 0.8)),
        },
    )
