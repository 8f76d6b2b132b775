"""A forked process uses what its parent has used, whose threads it does not have."""

import subprocess
import sys

import pytest

FORKED = """
import os, signal, sys
import numpy as np, pandas as pd
from gigabatch import GigabatchClassifier

random = np.random.default_rng(0)
rows = pd.DataFrame({"c": random.choice(list("abcdefgh"), 2000), "x": random.normal(size=2000)})

def fitted():
    model = GigabatchClassifier(sys.argv[1], random_state=0, train={"epochs": 1})
    return model.fit(rows, rows["x"] > 0)

model = fitted()
expected = model.predict_proba(rows)
child = os.fork()
if child == 0:
    signal.alarm(600)
    found = (fitted() if sys.argv[2] == "fit" else model).predict_proba(rows)
    os._exit(0 if np.allclose(found, expected, rtol=0, atol=1e-5) else 3)
assert np.array_equal(model.predict_proba(rows), expected)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize(("kind", "use"), [("deepfm", "predict"), ("tabular", "fit")])
def test_a_forked_child_predicts_and_fits_as_its_parent_did(kind, use):
    done = subprocess.run([sys.executable, "-c", FORKED, kind, use], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    if use == "predict":
        assert "This process computes on one thread" in done.stderr
