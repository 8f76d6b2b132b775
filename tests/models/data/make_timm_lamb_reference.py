"""Record trajectories of timm's Lamb, for test_lamb.py, with the settings whose meaning it shares with ours.

Run once in the environment of make_fastai_reference.py, from the root of the repository:

    /tmp/venv-fastai/bin/pip install --no-deps timm==1.0.31
    /tmp/venv-fastai/bin/python tests/models/data/make_timm_lamb_reference.py

It writes timm_lamb.npz beside itself: `case/what/parameter`, with a leading axis over steps for gradients and weights.
Only timm/optim is loaded, without timm/__init__.py, so that its other dependencies are not needed.
"""

import importlib.util
import json
import sys
import types
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).parent
SHAPES = {"weight0": (5, 4), "bias0": (4,), "weight1": (4, 3), "zeros": (3, 2)}
NUM_STEPS = 12

# Ours -> timm's: trust_clip 1.0 is trust_clip=True, None is False. "moving" changes lr and beta1 at every step.
CASES: dict[str, dict] = {
    "defaults": {"max_grad_norm": 1.0, "trust_clip": None, "always_adapt": False},
    "no_gradient_clip": {"max_grad_norm": None, "trust_clip": None, "always_adapt": False},
    "always_adapt": {"max_grad_norm": 0.5, "trust_clip": None, "always_adapt": True},
    "ratio_bounded_by_one": {"max_grad_norm": 1.0, "trust_clip": 1.0, "always_adapt": False},
    "moving": {"max_grad_norm": 1.0, "trust_clip": None, "always_adapt": False},
}


def load_timm_lamb() -> type[torch.optim.Optimizer]:
    folder = Path(importlib.util.find_spec("timm").origin).parent
    for name, path in (("timm", folder), ("timm.optim", folder / "optim")):
        package = types.ModuleType(name)
        package.__path__ = [str(path)]
        sys.modules[name] = package
    return importlib.import_module("timm.optim.lamb").Lamb


def record(lamb: type[torch.optim.Optimizer], settings: dict, moving: bool, seed: int) -> dict[str, np.ndarray]:
    torch.manual_seed(seed)
    weights = {name: torch.randn(shape, dtype=torch.float64) for name, shape in SHAPES.items()}
    weights["zeros"].zero_()  # ratio 1 at the first step: the zero guard
    decayed = [weights["weight0"], weights["weight1"], weights["zeros"]]
    optimizer = lamb(
        [{"params": decayed, "weight_decay": 0.02}, {"params": [weights["bias0"]], "weight_decay": 0.0}],
        lr=0.01,
        max_grad_norm=settings["max_grad_norm"],
        trust_clip=settings["trust_clip"] == 1.0,
        always_adapt=settings["always_adapt"],
    )
    arrays = {f"start/{name}": weight.numpy().copy() for name, weight in weights.items()}
    gradients, trajectory = {name: [] for name in SHAPES}, {name: [] for name in SHAPES}
    lrs = [0.01 * (1 + step if moving else 1) for step in range(NUM_STEPS)]
    beta1s = [0.9 - 0.01 * step if moving else 0.9 for step in range(NUM_STEPS)]
    for step in range(NUM_STEPS):
        for group in optimizer.param_groups:
            group["lr"], group["betas"] = lrs[step], (beta1s[step], 0.999)
        for name, weight in weights.items():
            scale = 3.0 if step % 3 == 0 else 0.05  # above and below the clipping norm
            weight.grad = torch.randn_like(weight) * scale
            gradients[name].append(weight.grad.numpy().copy())
        optimizer.step()
        for name, weight in weights.items():
            trajectory[name].append(weight.numpy().copy())
    arrays |= {f"gradients/{name}": np.stack(values) for name, values in gradients.items()}
    arrays |= {f"weights/{name}": np.stack(values) for name, values in trajectory.items()}
    return arrays | {"settings": np.array(json.dumps(settings)), "lr": np.array(lrs), "beta1": np.array(beta1s)}


if __name__ == "__main__":
    lamb = load_timm_lamb()
    recorded = {name: record(lamb, case, name == "moving", seed) for seed, (name, case) in enumerate(CASES.items())}
    path = HERE / "timm_lamb.npz"
    np.savez_compressed(path, **{f"{case}/{key}": v for case, arrays in recorded.items() for key, v in arrays.items()})
    print(path, path.stat().st_size, "bytes")
