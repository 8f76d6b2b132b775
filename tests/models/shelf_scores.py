"""The whole shelf's outputs for the same weights and rows.

As a program, for other instruction sets: `shelf_scores.py GIVEN FOUND` reads what `save_shelf` wrote, writes outputs.
"""

import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from gigabatch.loaders.tables.jagged import JaggedColumn
from gigabatch.models.inputs import EntityColumns, ModelInputs
from gigabatch.models.layers.embeddings import EmbeddingTables
from gigabatch.models.layers.members import MemberScale
from gigabatch.models.model import Model
from gigabatch.models.shelf import MODELS, ModelSpec, model_class
from tests.models.shelf_helpers import Rows, random_rows, with_needed_lists

NUM_ROWS = 300
INPUTS = ModelInputs((5, 7, 4), 5, 3, user=EntityColumns(0, (0,), (0,)), item=EntityColumns(1, (1,), (3,)))
# Inner widths that are no multiple of 4 and outputs of 2 to 11, where they can be: BLAS libraries compute such products
# by several formulas, and which one a row gets depends on its place.
SETTINGS = {
    "tabular": {"layers": (50, 9), "embedding_widths": (3, 3, 2)},
    "fm": {"embedding_dim": 7},
    "deepfm": {"embedding_dim": 3, "layers": (50, 9)},
    "wide_deep": {"embedding_dim": 3, "layers": (50, 9)},
    "dlrm": {"embedding_dim": 5, "bottom_layers": (9,), "top_layers": (50,)},
    "dcn": {"embedding_dim": 3, "layers": (50,), "rank": 3, "experts": 2},
    "fcn": {"embedding_dim": 6},
    "qnn": {"embedding_dim": 3, "num_layers": 2, "num_rows": 3},
    "finalmlp": {"embedding_dim": 3},
    "autoint": {"embedding_dim": 6},
    "din": {"embedding_dim": 3, "attention_layers": (9, 5), "layers": (50, 9)},
    "multi_task": {"embedding_dim": 3},
    "ple": {"embedding_dim": 3, "layers": (50, 9), "tower_layers": ()},
    "esmm": {"embedding_dim": 3, "layers": (50, 9)},
    "two_tower": {"layers": (50,), "vector_dim": 7},
    "sasrec": {"dim": 6, "num_heads": 2, "length": 4},
    "mf": {"dim": 7},
    "ncf": {"gmf_dim": 7, "mlp_dim": 9, "layers": (50, 9), "context": "both", "context_dim": 3},
    "mrmn": {"dim": 7, "memory_slots": 6},
}


def spec_of(name: str) -> ModelSpec:
    """The model of the shelf by name, on `INPUTS`, or on these with one output."""
    inputs = INPUTS
    if model_class(name).single_output:
        inputs = ModelInputs(INPUTS.num_ids, INPUTS.num_floats, 1, INPUTS.user, INPUTS.item)
    return ModelSpec(name, with_needed_lists(name, inputs), model_class(name).Settings(**SETTINGS.get(name, {})))


def rows_of(name: str) -> Rows:
    """The rows that the model by this name scores."""
    return random_rows(spec_of(name).inputs, NUM_ROWS, seed=2)


@cache
def shelf_model(name: str) -> Model:
    """In evaluation mode, with weights about as large as training leaves them; a shared copy, not to be changed."""
    torch.manual_seed(1)
    model = spec_of(name).build()
    tables = {table for module in model.modules() if isinstance(module, EmbeddingTables) for table in module.tables}
    factors = {module.weight for module in model.modules() if isinstance(module, MemberScale)}
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter in tables:
                parameter.normal_(std=0.5)
            elif parameter.dim() > 1 and parameter not in factors:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
            else:
                parameter.add_(0.2 * torch.randn(parameter.shape))
    rows = rows_of(name)
    if model.learns_by_steps:
        model.remember(rows.ids, rows.floats, rows.targets)
    else:
        model.fit(random_rows(model.inputs, 12, seed=5))  # few, so that users differ
    return model.eval()


@torch.inference_mode()
def outputs_of(
    model: Model, ids: Tensor, floats: Tensor, lists: Sequence[JaggedColumn] = (), block_rows: int = NUM_ROWS
) -> Tensor:
    """Outputs [N, O], computed `block_rows` rows at a time."""
    found = []
    for start in range(0, len(ids), block_rows):
        stop = min(start + block_rows, len(ids))
        own = [column.slice(start, stop) for column in lists]
        found.append(model(ids[start:stop], floats[start:stop], *([own] if own else [])))
    return torch.cat(found)


def save_shelf(path: Path) -> None:
    """Weights and rows of the whole shelf. What torch draws depends on the instruction set, so they are handed over."""
    given = {}
    for name in MODELS:
        rows = rows_of(name)
        given[name] = {"weights": shelf_model(name).state_dict(), "ids": rows.ids, "floats": rows.floats}
        given[name]["lists"] = [tuple(column[:2]) for column in rows.lists]
    torch.save(given, path)


def main(given: str, found: str) -> None:
    outputs = {}
    for name, of_model in torch.load(given).items():
        model = spec_of(name).build()
        model.load_state_dict(of_model["weights"])
        lists = [JaggedColumn(*column) for column in of_model["lists"]]
        outputs[name] = outputs_of(model.eval(), of_model["ids"], of_model["floats"], lists)
    torch.save({"capability": torch.backends.cpu.get_cpu_capability(), "outputs": outputs}, found)


if __name__ == "__main__":
    main(*sys.argv[1:])
