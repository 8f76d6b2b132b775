"""The API check needs cuDF's classes, not a GPU: `make test-cudf-api` has them, `make test` skips this folder.

`test_needs_cudf.py` says in every test run which of the two it was.
"""

import importlib.util

import pytest

collect_ignore_glob = (
    [] if importlib.util.find_spec("cudf") else ["checked.py", "test_*cudf_*.py", "test_[!n]*_cudf.py"]
)


@pytest.fixture(autouse=True)
def checks(monkeypatch):
    """Every test of this folder runs on checked engines."""
    if importlib.util.find_spec("cudf"):
        from tests.cudf_api.checked import check_everything

        check_everything(monkeypatch)
