"""The package's promises: what it exports, what it imports, and that importing it changes nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

import models

ROOT = Path(models.__file__).parents[1]
CHECK = """
import random, sys, numpy, torch
torch.manual_seed(0)
before = (torch.get_rng_state().tolist(), random.getstate(), str(numpy.random.get_state()),
          torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled())
import models
assert all(hasattr(models, name) for name in models.__all__)
after = (torch.get_rng_state().tolist(), random.getstate(), str(numpy.random.get_state()),
         torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled())
assert before == after
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_every_exported_name_exists():
    assert all(hasattr(models, name) for name in models.__all__)


def test_importing_models_changes_no_global_state_and_needs_none_of_our_other_packages():
    result = subprocess.run([sys.executable, "-c", CHECK], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert not {"features", "loaders", "pipeline", "pydantic", "pandas", "cudf"} & set(result.stdout.split())


def test_every_public_name_has_a_home_and_torch_waits_for_the_first_that_needs_it():
    assert sorted(models._HOMES) == sorted(models.__all__)
    code = "import sys, models, models.schedule, models.shelf; models.OneCycle; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True).stdout == "False\n"
    with pytest.raises(AttributeError, match="no attribute 'Lambda'"):
        models.Lambda  # noqa: B018
