"""Records what the authors' package `pytabkit` computes for RealMLP-TD, for tests/models/tabular/test_realmlp.py.

Its own weights after its own data-driven start, inputs, outputs and gradients of their sum, and its rates by parameter:

    pip install --no-deps --target /tmp/oracle pytabkit==1.7.3
    PYTHONPATH=/tmp/oracle python tests/models/data/make_realmlp_reference.py

Only the modules of the network are loaded, without the packages' __init__.py, which need more than is recorded here.
"""

import importlib.util
import sys
import types
from pathlib import Path

import numpy as np
import torch

SIZES, FLOATS, ROWS, WIDTH = [3, 4], 3, 40, 7


def load(name: str) -> types.ModuleType:
    """A module of the package whose parents' __init__.py are not run."""
    if "pytabkit" not in sys.modules:
        root = Path(importlib.util.find_spec("pytabkit").origin).parent
        for folder in ("", "/models", "/models/nn_models", "/models/data", "/models/training", "/models/sklearn"):
            package = types.ModuleType("pytabkit" + folder.replace("/", "."))
            package.__path__ = [str(root) + folder]
            sys.modules[package.__name__] = package
    return importlib.import_module(name)


def main() -> None:
    networks = load("pytabkit.models.nn_models.models")
    data = load("pytabkit.models.data.data")
    base = load("pytabkit.models.nn_models.base")
    coord = load("pytabkit.models.training.coord")
    defaults = load("pytabkit.models.sklearn.default_params").DefaultParams
    found = {}
    for kind, params in (("class", defaults.RealMLP_TD_CLASS), ("reg", defaults.RealMLP_TD_REG)):
        torch.manual_seed(1)
        floats = torch.randn(ROWS, FLOATS) * torch.tensor([1.0, 50.0, 0.01]) + torch.tensor([0.0, 7.0, 1.0])
        floats[:30, 2] = 1.0  # quartiles that are equal, a range that is not
        ids = torch.stack([torch.randint(size, (ROWS,)) for size in SIZES], dim=1)
        classes = 3 if kind == "class" else 0
        infos = {
            "x_cont": data.TensorInfo(feat_shape=[FLOATS]),
            "x_cat": data.TensorInfo(cat_sizes=SIZES),
            "y": data.TensorInfo(cat_sizes=[classes]),
        }
        labels = torch.randint(3, (ROWS, 1)) if classes else torch.randn(ROWS, 1)
        rows = data.DictDataset({"x_cont": floats, "x_cat": ids, "y": labels}, infos)
        changed = {"hidden_sizes": [WIDTH, WIDTH], "max_one_hot_cat_size": 1, "use_ls": False}
        config = params | changed | {"normalize_output": False, "clamp_output": False}
        manager = coord.HyperparamManager(**config)
        with base.set_hp_context(manager):
            model = networks.NNFactory(**config).create(infos).fit(rows)
        model.eval()
        with torch.no_grad():  # so that none is at a start that hides others
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.add_(0.1 * torch.randn_like(parameter))
        outputs = model(rows).tensors["x_cont"]
        outputs.square().sum().backward()
        arrays = {"ids": ids, "floats": floats, "outputs": outputs.detach()}
        for number, (name, parameter) in enumerate(model.named_parameters()):
            rate = getattr(parameter, "hyper_factors", {}).get("lr", 1.0)
            print(kind, number, name, list(parameter.shape), rate, parameter.requires_grad)
            arrays[f"weight {number}"], arrays[f"rate {number}"] = parameter.detach(), torch.tensor(rate)
            if parameter.grad is not None:
                arrays[f"gradient {number}"] = parameter.grad
        found |= {f"{kind} {name}": array.numpy() for name, array in arrays.items()}
    np.savez_compressed(Path(__file__).with_name("realmlp.npz"), **found)


if __name__ == "__main__":
    main()
