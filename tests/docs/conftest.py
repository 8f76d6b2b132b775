import os

import pytest
from markupsafe import Markup

from gigabatch.pipeline.reports import charts


@pytest.fixture
def nothing_drawn_or_flushed(monkeypatch):
    """Charts are empty and nothing waits for the disk, of runs whose reports nobody looks at."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr(charts, "_svg", lambda ax, label, key: Markup("<svg></svg>"))
