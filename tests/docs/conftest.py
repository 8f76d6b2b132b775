import os

import pytest


@pytest.fixture
def nothing_drawn_or_flushed(monkeypatch):
    """Charts are empty and nothing waits for the disk, of runs whose reports nobody looks at."""
    from markupsafe import Markup  # not at the top: a GPU box, which has neither, reads this file

    from gigabatch.pipeline.reports import charts

    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr(charts, "_svg", lambda ax, label, key: Markup("<svg></svg>"))
