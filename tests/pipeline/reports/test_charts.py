"""Charts: what is drawn is the data, in colours that are variables of the page."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest

from gigabatch.pipeline.reports.charts import (
    MAX_POINTS,
    VARIABLES,
    Calibration,
    Curves,
    Histogram,
    Roc,
    calibration_chart,
    curves_chart,
    histogram_chart,
    intervals_chart,
    learning_charts,
    roc_chart,
    scatter_chart,
    stacked_chart,
)

NAN = float("nan")


def parse(chart):
    return ElementTree.fromstring(str(chart.svg))


def lines(chart, series=1):
    """Points, shape [points, 2] in SVG units, of every unfilled path in the colour of a series."""
    style = f"stroke: var(--series-{series})"
    paths = [
        e.get("d") for e in parse(chart).iter("path") if style in e.get("style", "") and "fill: none" in e.get("style")
    ]
    return [np.array(re.findall(r"[ML] ([-\d.]+) ([-\d.]+)", path), dtype=float) for path in paths]


def num_markers(chart, series=1):
    return sum(f"fill: var(--series-{series})" in use.get("style", "") for use in parse(chart).iter("use"))


def assert_draws(points, x, y):
    """The points are an affine image of the data: SVG's y grows downwards, its numbers have six decimals."""
    assert len(points) == len(x)
    for drawn, data, sign in ((points[:, 0], x, 1), (points[:, 1], y, -1)):
        slope, offset = np.polyfit(data, drawn, 1)
        assert sign * slope > 0
        np.testing.assert_allclose(drawn, slope * np.asarray(data) + offset, atol=1e-3)


def all_charts():
    rng, grid = np.random.default_rng(0), np.linspace(0, 1, 11)
    return [
        *learning_charts([{"step": i, "train_loss": 1.0 / i, "valid_loss": 1.1 / i, "lr": 0.1} for i in range(1, 6)]),
        roc_chart(Roc(grid, np.sqrt(grid), 0.7), "roc"),
        calibration_chart(Calibration(grid, grid**2, np.arange(11)), "calibration"),
        histogram_chart(Histogram(grid, {"no": np.arange(10), "yes": np.ones(10)}), "Scores", "score", "scores"),
        scatter_chart(rng.normal(size=50), rng.normal(size=50), "scatter"),
        curves_chart(Curves(grid + 1, {"a": grid, "b": grid**2}, "x", "y", {"best": (1.5, 0.5)}, log_x=True), "C", "c"),
        calibration_chart({"new": Calibration(grid, grid, grid), "old": Calibration(grid, grid**2, grid)}, "both"),
        stacked_chart([0, 1], {"a": [1, 2], "b": [3, np.nan]}, ("night", "s"), "Seconds", "stack"),
        intervals_chart([("a", [0.1, 0.3], 0.2, 0.1), ("b", [0.4], 0.4, None)], "AUC by model", "AUC", "i", ""),
    ]


def test_every_chart_names_itself_and_leaves_colours_and_fonts_to_the_page():
    before = dict(matplotlib.rcParams)
    charts = all_charts()
    assert dict(matplotlib.rcParams) == before
    for chart in charts:
        text, root = str(chart.svg), parse(chart)
        assert not re.search(r"#[0-9a-fA-F]{3,8}\b(?!-)", re.sub(r'(href="|url\()#[\w-]+', "", text)), chart.title
        paints = re.findall(r"(?:fill|stroke|color): ([^;\"]+)", text)
        assert set(paints) <= {"none", *(f"var({name})" for name in VARIABLES.values())}, chart.title
        texts = list(root.iter("text"))
        assert texts
        assert all("fill: var(--" in text.get("style", "") for text in texts), chart.title  # SVG's default is black
        assert root.attrib == {"viewBox": root.get("viewBox"), "role": "img", "aria-label": chart.title}
        assert (root[0].tag, root[0].text) == ("title", chart.title)
        assert not [word for word in ("font", "xmlns", "<style") if word in text], chart.title
    ids = [element.get("id") for chart in charts for element in parse(chart).iter() if element.get("id")]
    used = [name for chart in charts for name in re.findall(r'(?:href="|url\()#([\w-]+)', str(chart.svg))]
    assert len(ids) == len(set(ids)) > 0
    assert set(used) == set(ids)


LOG_X = Curves([1.0, 10.0, 100.0, 1000.0], {"loss": [4, 3, 2, NAN], "other": [1, 2, 3, 4]}, "lr", "loss", log_x=True)
LOG_XY = Curves([-1.0, 1.0, 10.0, 100.0], {"y": [5.0, 0.0, 10.0, 100.0]}, "x", log_x=True, log_y=True)
DIVERGED = [{"epoch": i, "train_loss": loss} for i, loss in enumerate([0.9, NAN, 0.5, float("inf"), 0.3])]


@pytest.mark.parametrize(
    ("draw", "x", "y", "note"),
    [
        (
            lambda: roc_chart(Roc([0.0, 0.1, 1.0], [0.0, 0.6, 1.0], 0.8123456), "roc"),
            [0, 0.1, 1],
            [0, 0.6, 1],
            "AUC 0.8123",
        ),
        (lambda: roc_chart(Roc([0.0, 1.0], [0.0, 1.0], NAN), "roc"), [0, 1], [0, 1], ""),
        (
            lambda: calibration_chart(Calibration([0.1, NAN, 0.9], [0.2, NAN, 0.8], [9, 0, 1]), "c"),
            [0.1, 0.9],
            [0.2, 0.8],
            "area: rows of the bin",
        ),
        (lambda: learning_charts(DIVERGED)[0], [0, 2, 4], [0.9, 0.5, 0.3], "not finite: 2 of the values"),
        (lambda: curves_chart(LOG_X, "Loss", "c"), [0, 1, 2], [4, 3, 2], ""),
        (lambda: curves_chart(LOG_XY, "Few", "c"), [1, 2], [1, 2], ""),
    ],
    ids=["roc", "roc without an area", "calibration", "diverged", "log x", "log x and y"],
)
def test_what_is_finite_is_drawn_and_the_rest_left_out(draw, x, y, note):
    chart = draw()
    assert_draws(lines(chart)[0], x, y)
    assert (chart.note or "") == note


def test_curves_name_every_line_and_mark():
    chart = curves_chart(replace(LOG_X, marks={"best": (10, 3)}), "Loss", "c")
    assert [label for label, _ in chart.legend] == ["loss", "other", "best"]
    assert num_markers(chart, 3) == 1
    assert learning_charts([{"step": 1, "train_loss": NAN}]) == learning_charts([]) == []


def test_members_have_a_line_each_in_the_colour_of_their_split():
    """Train losses of batches of several members cross each other everywhere: they are means of an epoch."""
    rows = []
    for member in range(4):
        for step in range(1, 61):
            told = {"step": step, "epoch": step / 20, "train_loss": member + 1 / step + (-1) ** step, "lr": 0.1}
            rows.append(told | {"member": member} | ({"valid_loss": 2 / step + member} if step % 20 == 0 else {}))
    loss, rate = learning_charts(rows)
    assert ([name for name, _ in loss.legend], loss.note) == (["train", "valid"], "a line a member")
    assert (rate.legend, len(lines(rate))) == ((), 1)
    train, valid = lines(loss, 1), lines(loss, 2)
    assert (len(train), len(valid)) == (4, 4)
    means = [np.mean([1 / step for step in range(first, first + 20)]) for first in (1, 21, 41)]
    for member in range(4):
        assert_draws(train[member], [20, 40, 60], np.array(means) + member)
        assert_draws(valid[member], [20, 40, 60], 2 / np.array([20, 40, 60]) + member)


def test_learning_curve_has_a_chart_per_quantity_and_a_line_per_split():
    rows = [
        {"step": 10 * i, "train_loss": 1 / i, "valid_loss": 2 / i, "valid_auc": i / 9, "lr": 0.1} for i in (1, 2, 5)
    ]
    loss, auc, rate = learning_charts(rows)
    assert [chart.title for chart in (loss, auc, rate)] == ["Loss by step", "AUC by step", "Learning rate by step"]
    assert [[label for label, _ in chart.legend] for chart in (loss, auc, rate)] == [["train", "valid"], ["valid"], []]
    assert_draws(lines(loss, 2)[0], [10, 20, 50], [2, 1, 0.4])


def test_histogram_draws_shares_so_that_labels_of_different_size_compare():
    chart = histogram_chart(Histogram([0.0, 0.5, 1.0], {"no": [300, 100], "yes": [3, 1]}), "Scores", "score", "h")
    common, rare = lines(chart, 1)[-1], lines(chart, 2)[-1]
    np.testing.assert_allclose(common, rare)  # 300:100 and 3:1 are the same shares
    heights = common[:, 1].max() - np.unique(common[:, 1])[:2]  # of the bins of 0.75 and 0.25 above the base
    assert heights[0] / heights[1] == pytest.approx(3)
    flat = histogram_chart(Histogram([0, 1, 2], {"rows": [0, NAN]}), "Residuals", "x", "h")
    assert np.ptp(lines(flat)[-1][:, 1]) == 0


def test_scatter_draws_at_most_a_thousand_finite_points_and_says_of_how_many():
    for num_rows, shown in ((10, 10), (50_001, MAX_POINTS)):
        values = np.arange(num_rows, dtype=float)
        chart = scatter_chart(values, values, "s")
        assert num_markers(chart) == shown
        assert chart.note == f"{shown:,} of {num_rows:,} rows"
    assert num_markers(scatter_chart([1.0, NAN, 3.0], [1.0, 2.0, float("inf")], "s")) == 1
    assert scatter_chart([], [], "s").note == "0 of 0 rows"


def test_each_model_of_a_calibration_has_its_own_line_and_name():
    grid = np.linspace(0.1, 0.9, 5)
    parts = {"new": Calibration(grid, grid**2, np.ones(5)), "old": Calibration(grid, grid**3, np.ones(5))}
    made = calibration_chart(parts, "key", "clicked")
    for series, power in ((1, 2), (2, 3)):
        (drawn,) = lines(made, series)
        assert_draws(drawn, grid, grid**power)
    assert (made.title, [name for name, _ in made.legend]) == ("clicked", ["new", "old"])


def test_columns_are_stacked_and_what_is_not_finite_counts_as_nothing():
    made = stacked_chart([-1, 0], {"a": [1.0, 2.0], "b": [3.0, NAN]}, ("night", ""), "Seconds", "key")
    boxes = {}
    for series in (1, 2):
        style = f"fill: var(--series-{series})"
        paths = [e.get("d") for e in parse(made).iter("path") if style in e.get("style", "")]
        points = [np.array(re.findall(r"[ML] ([-\d.]+) ([-\d.]+)", path), dtype=float) for path in paths]
        boxes[series] = [(np.ptp(item[:, 1]), item[:, 1].max()) for item in points]
    (first, ground), (second, _) = boxes[1]
    (above, foot), (nothing, _) = boxes[2]
    assert second / first == pytest.approx(2, rel=1e-3)
    assert above / first == pytest.approx(3, rel=1e-3)
    assert (nothing, foot) == (pytest.approx(0, abs=1e-3), pytest.approx(ground - first, abs=1e-3))


def test_long_numbers_at_the_axes_are_short():
    values = np.linspace(10_000, 30_000, 50)
    chart = scatter_chart(values, values, "s")
    assert "20k" in chart.svg
    assert "20000" not in chart.svg
    assert "2000" in scatter_chart(values / 10, values / 10, "s").svg
