"""The report in Chromium: nothing logged, nothing wider than the window, no chart alone in a row, whole when printed.

Left out where there is no Chromium; `.ci/run` installs Debian's.
"""

import dataclasses

import pytest

from gigabatch.pipeline.reports.report import ReportData, write_report
from tests.pipeline.reports import chromium
from tests.pipeline.reports.test_report import full

pytestmark = pytest.mark.skipif(chromium.executable() is None, reason="there is no Chromium on this machine")

LONG = "a_column_whose_name_is_" + "very_" * 12 + "long"
MARKUP = '"><script>console.error(1)</script><img src=x onerror=alert(1)></style></title></svg><b>x</b>'
OVERFLOWING = """[...document.querySelectorAll('body *')].filter(element =>
    element.getBoundingClientRect().right > document.documentElement.clientWidth + 1
    && element.checkVisibility() && !element.closest('.scroll') && !element.closest('pre')
    && !element.closest('svg')).map(element => element.outerHTML.slice(0, 120))"""
# Of each row of charts: how many figures, and the share of the row's width that is theirs.
CHART_ROWS = """[...document.querySelectorAll('.charts')].flatMap(grid => {
    const rows = {}, whole = grid.getBoundingClientRect().width
    for (const figure of grid.children) {
        const box = figure.getBoundingClientRect(), drawn = [...figure.querySelectorAll('svg')]
            .map(svg => svg.getBoundingClientRect().width).reduce((a, b) => a + b)
        ;(rows[box.top] ??= []).push(drawn / whole)
    }
    return Object.values(rows)
})"""


@pytest.fixture(scope="module")
def browser():
    with chromium.browser() as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    made = {
        "calm": full(),
        "long": full(LONG),
        "markup": full(MARKUP),
        "bare": ReportData("bare"),
        "wide": dataclasses.replace(full(), columns=[{"name": f"{LONG}{i}", "nulls": 0.1} for i in range(60)]),
    }
    for name, data in made.items():
        write_report(folder / f"{name}.html", data)
    return {name: folder / f"{name}.html" for name in made}


@pytest.mark.parametrize("width", [390, 768, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["calm", "long", "markup", "bare", "wide"])
def test_nothing_is_logged_or_wider_than_the_window(browser, pages, name, width, scheme):
    browser.logged.clear()
    browser.open(pages[name], width, scheme)
    assert browser.value(OVERFLOWING) == []
    assert browser.value("document.documentElement.scrollWidth") == width
    assert browser.logged == []
    dark = browser.value("getComputedStyle(document.documentElement).colorScheme")
    assert dark == scheme


@pytest.mark.parametrize("width", [768, 1280])
def test_no_chart_is_alone_in_a_row_but_one_that_fills_it(browser, pages, width):
    browser.open(pages["calm"], width, "light")
    rows = browser.value(CHART_ROWS)
    assert len(rows) >= 5
    for row in rows:
        assert len(row) > 1 or row[0] > 0.95


def test_the_browser_sees_what_the_others_ask_for(browser, tmp_path):
    """That the tests above can fail."""
    page = tmp_path / "bad.html"
    page.write_text("<script>console.error('told')</script><div style='width:2000px'>wide</div>")
    browser.logged.clear()
    browser.open(page, 390, "light")
    assert len(browser.value(OVERFLOWING)) == 1
    assert "told" in browser.logged[0]


def test_the_printed_page_is_a_pdf_of_a_few_sheets(browser, pages):
    browser.open(pages["calm"], 768, "light")
    printed = browser.printed()
    assert printed.startswith(b"%PDF")
    assert 2 <= printed.count(b"/Type /Page\n") <= 8


def test_settings_that_differ_make_no_tall_row_out_of_sight(browser, tmp_path):
    steps = "features.steps [" + ", ".join(f"{{'parse_number': {{'column': 'price_{k}'}}}}" for k in range(7)) + "]"
    metrics = {f"metric {place}": 0.5 for place in range(9)}
    runs = [{"run": f"run {k}", **metrics, "settings that differ": steps} for k in (1, 2)]
    write_report(tmp_path / "page.html", dataclasses.replace(full(), history=runs))
    for width in (390, 768):
        browser.open(tmp_path / "page.html", width, "light")
        lines = browser.value(
            "[...document.querySelectorAll('#history tbody tr')].map(row => row.getBoundingClientRect().height"
            " / parseFloat(getComputedStyle(row.cells[0]).lineHeight))"
        )
        assert len(lines) == 2
        assert max(lines) < 9, (width, lines)  # it was 14.6 of 268 letters


def test_a_long_configuration_takes_few_sheets(browser, tmp_path):
    lines = "\n".join(f"  setting_{k}: [{k}, {k + 1}]" for k in range(400))
    sheets = []
    for name, text in (("without", None), ("with", lines)):
        write_report(tmp_path / f"{name}.html", dataclasses.replace(full(), configuration=text))
        browser.open(tmp_path / f"{name}.html", 768, "light")
        sheets.append(browser.printed().count(b"/Type /Page\n"))
    assert 1 <= sheets[1] - sheets[0] <= 3, sheets  # it was 6
