"""The package's promises: what it exports, what it imports, and that importing it changes nothing."""

import subprocess
import sys
from pathlib import Path

import models

CHECK = """
import random, sys, numpy, torch
torch.manual_seed(0)
before = (torch.get_rng_state().tolist(), random.getstate(), str(numpy.random.get_state()),
          torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled())
import models
after = (torch.get_rng_state().tolist(), random.getstate(), str(numpy.random.get_state()),
         torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled())
assert before == after
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_every_exported_name_exists():
    assert all(hasattr(models, name) for name in models.__all__)


def test_importing_models_changes_no_global_state_and_needs_none_of_our_other_packages():
    root = Path(models.__file__).parents[1]
    result = subprocess.run([sys.executable, "-c", CHECK], cwd=root, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert not {"features", "loaders", "pipeline", "pydantic", "pandas", "cudf"} & set(result.stdout.split())
