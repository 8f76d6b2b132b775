"""Optimizers of ours step, are saved and restored without torch's compiler, whose import takes seconds."""

import subprocess
import sys

STEPS = """
import sys
import torch
from torch import nn
from gigabatch.models.layers.embeddings import EmbeddingTables
from gigabatch.models.optimizers.registry import build_optimizer

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = EmbeddingTables([5, 7], [4, 4])
        self.dense = nn.Linear(8, 1)

    def forward(self, ids):
        return self.dense(self.tables(ids).flatten(1))

def moved(state=None):
    torch.manual_seed(0)
    net = Net()
    optimizer = build_optimizer(net, "lamb", lr=0.1)
    if state is not None:
        optimizer.load_state_dict(state)
    for _ in range(2):
        optimizer.zero_grad()
        net(torch.tensor([[1, 2], [3, 4]])).sum().backward()
        optimizer.step()
    return net, optimizer

net, optimizer = moved()
again, restored = moved(optimizer.state_dict())
print([len(group["params"]) for group in restored.param_groups], "torch._dynamo" in sys.modules)
"""


def test_the_compiler_is_not_loaded_to_step_save_and_restore():
    done = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "False"
