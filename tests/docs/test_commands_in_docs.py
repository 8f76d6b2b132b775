"""Commands that the docs show with a configuration of conf/ are ones that can be given."""

import re
import shlex
from pathlib import Path

import pytest

from gigabatch.pipeline.config.config import load_config

ROOT = Path(__file__).parents[2]
LINE = re.compile(r"^[ \t]*gigabatch [\w-]+ .*--config conf/(\w+)\.yaml.*$", re.MULTILINE)
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]


def shown():
    """(page, configuration, overrides) of every command with overrides."""
    for page in PAGES:
        for found in LINE.finditer(page.read_text(encoding="utf-8")):
            words = shlex.split(found[0], comments=True)
            given = [word for word in words if re.match(r"[a-z_.]+=", word) and word != "key=value"]
            if given and (ROOT / f"conf/{found[1]}.yaml").exists():
                yield pytest.param(found[1], given, id=f"{page.name}-{'-'.join(given)}")


@pytest.mark.parametrize(("name", "overrides"), list(shown()))
def test_the_overrides_of_a_command_fit_its_configuration(name, overrides):
    assert load_config(ROOT / f"conf/{name}.yaml", overrides).name == name
