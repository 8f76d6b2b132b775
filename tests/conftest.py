"""What every test shares: the GPU gate, quiet threads, and where the sample data lies."""

from pathlib import Path

import pytest
import torch

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of sample data beside a developer's checkout; it is not part of the product."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"sample data {SHARED_DATA} is not here")
    return SHARED_DATA
