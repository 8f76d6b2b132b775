"""The report: one well-formed page, no outside reference, nothing unescaped, no empty section."""

import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

import numpy as np
import pytest
from markupsafe import Markup

from gigabatch.pipeline.reports.report import (
    Calibration,
    Confusion,
    Gains,
    Histogram,
    Means,
    Quality,
    ReportData,
    Roc,
    SliceTables,
    confusion_table,
    importance_bars,
    metric_texts,
    render_report,
    table,
    write_report,
)

NAN = float("nan")
VOID = {"meta", "link", "input", "br", "hr", "img", "wbr"}
SECTIONS = (
    "baselines",
    "splits",
    "history",
    "learning",
    "quality",
    "slices",
    "importance",
    "stages",
    "columns",
    "environment",
)
SECTIONS += ("configuration",)


class Page(HTMLParser):
    """Tags, attributes and texts of a page; fails where a tag is closed out of turn."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.attributes, self.words = [], [], [], []
        self.inside = {}
        self.feed(text)
        self.close()
        assert self.open == [], f"not closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attributes]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> out of turn"

    def handle_data(self, data):
        self.words.append(data)
        for tag in set(self.open):
            self.inside[tag] = self.inside.get(tag, "") + data

    def ids(self):
        return [value for _, name, value in self.attributes if name == "id"]


def full(text="Flights", number=0.5):
    """Data for every section; `text` stands wherever a name may, `number` among the numbers."""
    grid = np.linspace(0, 1, 6)
    return ReportData(
        name=text,
        run_id=text,
        created_utc="2025-07-14T03:12:44+00:00",
        notes=[text],
        metrics={"auc": 0.76341234, "mrr": None, text: number},
        metric_notes={"auc": text},
        split_rows=32_734,
        split_more=text,
        warnings=[f"worse than {text}", text],
        baselines=[{"": text, "auc": number, "gain of auc": 0.1, "seconds": 2.5, "worse": text}],
        baselines_title=text,
        splits=[{"name": text, "flag": text, "rows": 228_344, "positive_rate": number, "from": text, "to": None}],
        learning_curve=[{"step": 10 * i, "train_loss": 1 / i, "valid_loss": number, text: 0.1 * i} for i in (1, 2)],
        quality=[
            Quality(
                text,
                roc=Roc(grid, grid**0.5, 0.66),
                gains=Gains(grid[1:], grid[1:] ** 0.5, grid, 1 - grid / 2, 0.5, 0.75),
                thresholds=[{"chosen_by": text, "threshold": number, "flagged": 0.25, "precision": number}],
                thresholds_text=text,
                calibration=Calibration(grid, grid**2, np.arange(6), grid**2 / 2, grid),
                scores=Histogram(grid, {text: np.arange(5), "other": np.ones(5)}),
                metrics={"gauc": 0.61234567, text: number, "mrr": None},
            ),
            Quality(
                "price",
                residuals=Histogram(grid, {"rows": np.ones(5)}),
                residual_means=Means(grid, -grid, -2 * grid, grid * 0),
                predicted_actual=(grid, grid),
                spread=Histogram(grid, {"predicted": np.ones(5), "actual": np.ones(5)}),
            ),
            Quality(
                "hotel",
                confusion=Confusion([text, "b"], [[3, 1], [0, 4]]),
                most_confused=[{"true class": text, "predicted": "b", "rows": 1, "of_its_class": 0.25}],
                classes=[{"class": text, "rows": 4, "recall": 0.75, "precision": 1.0, "F1": number}],
            ),
        ],
        slices=[SliceTables(text, text, text, [{"slice": text, "rows": 150, "AUC": number}], [{"slice": text}])],
        history=[{"run": text, "AUC": number, "gain of AUC": 0.01, "settings that differ": text}],
        history_text=text,
        stages=[
            {"stage": text, "seconds": 2.0, "rows": 1_234_567, "rows/s": 617_284},
            {"stage": "train", "seconds": None, "rows/s": None, "note": "skipped, unchanged: an earlier run took 70 s"},
        ],
        columns=[{"name": text, "nulls": number, "unseen_rate": None, "mean": number, text: text}],
        importance=[{"name": text, "mean": 0.2, "std": 0.1}, {"name": "b", "mean": number, "std": number}],
        environment={text: text, "torch": "2.13"},
        configuration=text,
    )


@cache
def full_text():
    return render_report(full())


def test_every_section_of_full_data_is_there_once_and_linked():
    page = Page(full_text())
    assert [name for name in page.ids() if name in SECTIONS] == list(SECTIONS)
    links = [value for tag, name, value in page.attributes if (tag, name) == ("a", "href")]
    assert links == [f"#{name}" for name in SECTIONS]
    # Learning (loss and one more, each narrow and wide), binary target, regression target.
    assert page.tags.count("svg") == 2 * 2 + 6 + 4
    for text in ("0.7634", "228,344", "1,234,567", "617,284", "skipped, unchanged: an earlier run took 70 s"):
        assert text in page.words
    assert "2025-07-14 03:12:44 UTC" in page.words
    assert any(text.startswith("2.0 seconds in this run.") for text in page.words)  # without the stage that was skipped


def test_a_tile_names_split_and_rows_and_what_does_not_apply_takes_no_room():
    page = Page(full_text())
    assert "Test AUC" in page.words
    assert any("Of the 32,734 rows of the test split" in text for text in page.words)
    assert "MRR" not in " ".join(page.words)
    valid = Page(render_report(ReportData("a", split="valid", metrics={"logloss": 0.5, "auc": NAN, "mrr": None})))
    assert "Valid log loss" in valid.words
    assert "could not be computed" in valid.words


def test_a_flag_is_marked_and_an_empty_one_is_not():
    rows = [{"name": "a", "flag": "unseen: 52 % of test"}, {"name": "b", "flag": ""}]
    text = render_report(ReportData("a", columns=rows))
    assert text.count('class="long mark"') == 1
    assert '<td class="long mark">unseen: 52 % of test</td>' in text


def test_the_printed_page_opens_what_is_folded_and_keeps_the_yaml_within_the_sheet():
    rules = full_text().partition("@media print {")[2]
    assert "details::details-content { content-visibility: visible" in rules
    assert "pre { white-space: pre-wrap" in rules


def test_only_shares_of_ours_are_shown_as_percentages():
    """The mean of a target that is called exchange_rate is no share."""
    splits = [{"name": "test", "rows": 3, "mean of exchange_rate": 1.1234}]
    page = Page(render_report(replace(full(), splits=splits)))
    assert "1.123" in page.words
    assert not any("112.3" in text for text in page.words)


def test_a_section_without_data_is_left_out(monkeypatch):
    monkeypatch.setattr(
        "gigabatch.pipeline.reports.charts._svg", lambda *_: Markup("<svg></svg>")
    )  # drawn eleven times, all alike
    fields = {section: section for section in (*SECTIONS, "metrics")} | {"learning": "learning_curve"}
    assert set(fields) <= set(Page(full_text()).ids())
    for section, field in fields.items():
        ids = Page(render_report(replace(full(), **{field: getattr(ReportData("tiny"), field)}))).ids()
        assert section not in ids
        assert set(fields) - {section} <= set(ids)


def test_the_page_refers_to_nothing_outside_itself():
    text = full_text()
    page = Page(text)
    references = {"src", "srcset", "href", "xlink:href", "action", "data", "poster", "background", "formaction"}
    for _, name, value in page.attributes:
        if name in references:
            assert value == "data:," or value.startswith("#")
    assert not {"script", "img", "iframe", "object", "embed", "video"} & set(page.tags)
    assert "://" not in text
    assert "@import" not in text
    assert set(re.findall(r"url\((.)", text)) == {"#"}


def test_ids_are_unique_and_references_resolve():
    text = full_text()
    ids = Page(text).ids()
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="|url\()#([\w-]+)', text)) <= set(ids)


def test_colours_of_charts_are_defined_for_light_and_dark():
    text = full_text()
    used = set(re.findall(r"var\((--[\w-]+)\)", text))
    light, *darks = re.findall(r"color-scheme: (?:light|dark); (.*?)\}", text, re.DOTALL)
    assert len(darks) == 2  # by preference and by the switch
    for block in (light, *darks):
        assert used <= set(re.findall(r"(--[\w-]+):", block))


@pytest.mark.parametrize(
    "hostile",
    [
        "\"><script>alert(1)</script><img src=x onerror=alert(1)>' onmouseover='alert(1)' x='{{ 7 * 7 }}{% raw %}",
        "</style></title></svg><script>alert(1)</script>$x^{2} &lt;b&gt; &amp; ]]><!--",
    ],
)
def test_hostile_names_are_text_everywhere(hostile):
    page = Page(render_report(full(hostile)))
    calm = Page(full_text())
    assert [tag for tag in page.tags if tag != "wbr"] == [tag for tag in calm.tags if tag != "wbr"]
    assert {name for _, name, _ in page.attributes} == {name for _, name, _ in calm.attributes}
    assert page.inside["h1"] == hostile
    assert page.inside["pre"] == hostile
    texts = sum(hostile in word for word in page.words)
    assert texts == sum("Flights" in word for word in calm.words) > 15


def test_equal_data_give_equal_bytes(tmp_path):
    for name in ("a.html", "b.html"):
        write_report(tmp_path / name, full("\udc80"))  # a lone surrogate, as from a bad file name
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


@pytest.mark.parametrize("number", [None, NAN, float("inf"), np.int64(-7)])
def test_missing_and_odd_numbers_make_a_page(number):
    data = full(number=number)
    rows = [*data.importance, {"name": "c", "mean": NAN, "std": None}]
    words = "".join(Page(render_report(replace(data, importance=rows))).words)
    assert "nan" not in re.findall(r"\w+", words.lower())


@pytest.mark.parametrize(
    ("name", "value", "texts"),
    [
        ("auc", 0.76341234, ("AUC", "0.7634", "0.5 is chance, 1 is perfect")),
        ("auc", NAN, ("AUC", "–", "could not be computed")),
        ("rows_per_second", 1_834_223, ("Rows per second", "1,834,223", "")),
        ("rmse", 0.00001234, ("RMSE", "1.23e-05", "0 is perfect")),
        ("rmse", np.float32(12.5), ("RMSE", "12.5000", "0 is perfect")),
    ],
)
def test_headline_metrics(name, value, texts):
    assert metric_texts(name, value) == texts


def test_tables_show_fractions_signs_and_bars():
    rows = [
        {"name": "a", "nulls": 0.25, "difference": 0.0042, "seconds": 1.0},
        {"name": "b", "nulls": 0.0001, "difference": -0.00002, "seconds": 4.0},
        {"name": "c", "nulls": None, "difference": NAN, "seconds": 0.001},
    ]
    made = table(rows, bars=("nulls", "seconds"), signed=("difference",))
    assert [head for head, number in made.heads if number] == ["nulls", "difference", "seconds"]
    assert [[cell.text for cell in row] for row in made.rows] == [
        ["a", "25.0 %", "+0.0042", "1.00"],
        ["b", "<0.1 %", "-2e-05", "4.00"],
        ["c", "–", "–", "<0.01"],
    ]
    assert [row[1].bar for row in made.rows] == [0.25, 0.0001, None]
    assert [row[3].bar for row in made.rows] == [0.25, 1.0, 0.00025]


def test_a_share_that_is_not_quite_all_is_not_written_as_all():
    made = table([{"nulls": share} for share in (1.0, 0.99996, 0.9994)])
    assert [row[0].text for row in made.rows] == ["100.0 %", ">99.9 %", "99.9 %"]


def test_importance_is_sorted_scaled_and_keeps_unknown_rows_last():
    rows = [
        {"name": "noise", "mean": -0.1, "std": 0.2},
        {"name": "lost", "mean": None},
        {"name": "half", "mean": 1.0, "std": 0.5},
        {"name": "top", "mean": 2.0, "std": 2.0},
    ]
    bars = importance_bars(rows)
    assert [bar["name"] for bar in bars] == ["top", "half", "noise", "lost"]
    assert [(bar["length"], bar["low"], bar["high"]) for bar in bars] == [
        (50.0, 0.0, 100.0),
        (25.0, 12.5, 37.5),
        (0.0, 0.0, 2.5),
        (0.0, 0.0, 0.0),
    ]
    assert [bar["text"] for bar in bars] == ["2.00", "1.00", "-0.10", "–"]
    small = importance_bars([{"name": "top", "mean": 2.0, "std": 0.0}, {"name": "none", "mean": -1e-5, "std": 0.0}])
    assert [bar["text"] for bar in small] == ["2.00", "0.00"]


def test_confusion_gathers_rare_classes_and_loses_no_row():
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 50, (40, 40))
    common = [3, 17, 39]
    counts[common] += 1000
    made = confusion_table(Confusion([f"class {i}" for i in range(40)], counts))
    labels = [row[0].text for row in made.rows]
    assert len(labels) == 15
    assert labels[-1] == "26 others"
    assert {f"class {i}" for i in common} <= set(labels)
    numbers = np.array([[int(cell.text.replace(",", "")) for cell in row[1:]] for row in made.rows])
    assert numbers.sum() == counts.sum()
    assert numbers[labels.index("class 17"), labels.index("class 3")] == counts[17, 3]
    assert numbers[labels.index("class 17"), -1] == counts[17].sum() - numbers[labels.index("class 17"), :-1].sum()


def test_a_confusion_of_small_weights_is_shaded_by_shares_too():
    made = confusion_table(Confusion(["a", "b"], [[0.003, 0.001], [0.0, 0.0]]))
    assert [[cell.text for cell in row] for row in made.rows] == [["a", "0.003", "0.001"], ["b", "0", "0"]]
    assert [[cell.shade for cell in row[1:]] for row in made.rows] == [[0.75, 0.25], [0.0, 0.0]]


def test_confusion_shades_by_share_of_the_true_class():
    made = confusion_table(Confusion(["a", "b", "never"], [[3, 1, 0], [0, 5, 0], [0, 0, 0]]))
    assert [[cell.shade for cell in row[1:]] for row in made.rows] == [[0.75, 0.25, 0], [0, 1, 0], [0, 0, 0]]


def test_five_hundred_columns_are_all_there_and_most_are_folded():
    names = [f"column_{i}_" + "long_" * 20 for i in range(500)]
    columns = [{"name": name, "dtype": "float32", "nulls": 0.1} for name in names]
    importance = [{"name": name, "mean": 1.0 / (i + 1), "std": 0.0} for i, name in enumerate(names)]
    page = Page(render_report(ReportData("wide", columns=columns, importance=importance)))
    assert all(name in page.inside["table"] for name in names)
    assert sum(name in page.inside["details"] for name in names) == 470
    assert page.inside["summary"] == "470 more" * 2


def test_a_threshold_has_all_digits_that_tell_scores_apart():
    ((cell,),) = table([{"threshold": 0.600000024}]).rows
    assert cell.text == "0.600000024"
