"""Pages of docs/: each is reached from the index, and names no place on the web but the known ones. `make docs` finds
dead links and anchors between pages."""

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = sorted([*DOCS.glob("*.md"), *DOCS.glob("models/*.md")])
# Nothing here looks whether they answer: a build needs no network.
KNOWN = {"https://ui.perfetto.dev"}


def test_no_page_links_to_a_place_that_nobody_looked_at():
    found = {link for page in PAGES for link in re.findall(r"\]\((https?://[^)\s]+)\)", page.read_text())}
    assert found == KNOWN


def test_pages_beside_the_documentation_link_to_files_that_are_there():
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        for link in re.findall(r"\]\(([^)\s]+)\)", (DOCS.parent / name).read_text()):
            path = link.partition("#")[0]
            assert link == "https://keepachangelog.com/en/1.1.0/" or (DOCS.parent / path).exists(), f"{name}: {link}"


def test_every_page_is_reached_from_the_index():
    listed = set()
    for page in (DOCS / "index.md", DOCS / "models" / "README.md"):
        for block in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(), re.DOTALL):
            for line in block.splitlines():
                if line and not line.startswith(":"):
                    name = (re.search(r"<(.*)>", line) or [line, line])[1]
                    found = page.parent.glob("[a-z]*.md") if name == "*" else [page.parent / name]
                    listed |= {one.with_suffix("").relative_to(DOCS) for one in found}
    written = {page.relative_to(DOCS).with_suffix("") for page in PAGES} - {Path("index")}
    assert listed == written | {Path("reference") / name for name in generated()}


def generated():
    text = (DOCS / "_generate.py").read_text()
    return re.findall(r'^    "(\w+)": \w+_page,$', text, re.MULTILINE)
