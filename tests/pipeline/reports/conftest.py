"""Charts are drawn here, where they are what is tested."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _nothing_drawn_or_flushed():
    """In the place of that of tests/pipeline."""
