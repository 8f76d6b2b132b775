"""Records what the authors' package `tabm` computes, for tests/models/tabular/test_tabm.py.

Weights, inputs, outputs of every member and gradients of the mean of the members' losses, of its two forms:

    pip install --no-deps --target /tmp/oracle tabm==0.0.3 rtdl_num_embeddings==0.0.12
    PYTHONPATH=/tmp/oracle python tests/models/data/make_tabm_reference.py
"""

import sys
from pathlib import Path

import numpy as np
import torch
from tabm import TabM

CARDINALITIES, FLOATS, CLASSES, MEMBERS, WIDTH, BLOCKS, ROWS = [3, 4], 2, 3, 5, 7, 2, 6


def main() -> None:
    found = {}
    for form in ("tabm", "tabm-mini"):
        torch.manual_seed(1)
        model = TabM.make(
            n_num_features=FLOATS, cat_cardinalities=CARDINALITIES, d_out=CLASSES, k=MEMBERS, n_blocks=BLOCKS,
            d_block=WIDTH, dropout=0.0, arch_type=form,
        )  # fmt: skip
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
        ids = torch.stack([torch.randint(size, (ROWS,)) for size in CARDINALITIES], dim=1)
        floats, labels = torch.randn(ROWS, FLOATS), torch.randint(CLASSES, (ROWS,))
        outputs = model(floats, ids)
        loss = torch.nn.functional.cross_entropy(outputs.flatten(0, 1), labels.repeat_interleave(MEMBERS))
        loss.backward()
        arrays = {"ids": ids, "floats": floats, "labels": labels, "outputs": outputs.detach(), "loss": loss.detach()}
        arrays |= {f"weight {name}": parameter.detach() for name, parameter in model.named_parameters()}
        arrays |= {f"gradient {name}": parameter.grad for name, parameter in model.named_parameters()}
        found |= {f"{form} {name}": array.numpy() for name, array in arrays.items()}
        print(form, *(f"{name} {list(parameter.shape)}" for name, parameter in model.named_parameters()), sep="\n  ")
    np.savez_compressed(Path(__file__).with_name("tabm.npz"), **found)


if __name__ == "__main__":
    sys.exit(main())
