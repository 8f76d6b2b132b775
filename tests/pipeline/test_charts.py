"""Charts: what is drawn is the data, in colours that are variables of the page."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from pipeline.charts import (
    MAX_POINTS,
    VARIABLES,
    Calibration,
    Curves,
    Histogram,
    Roc,
    calibration_chart,
    curves_chart,
    histogram_chart,
    learning_charts,
    roc_chart,
    scatter_chart,
)

NAN = float("nan")


def parse(chart):
    return ElementTree.fromstring(str(chart.svg))


def lines(chart, series=1):
    """Points, shape [points, 2] in SVG units, of every unfilled path in the colour of a series."""
    paths = [
        element.get("d")
        for element in parse(chart).iter("path")
        if f"stroke: var(--series-{series})" in element.get("style", "") and "fill: none" in element.get("style", "")
    ]
    return [np.array(re.findall(r"[ML] ([-\d.]+) ([-\d.]+)", path), dtype=float) for path in paths]


def num_markers(chart, series=1):
    uses = [u for u in parse(chart).iter("use") if f"fill: var(--series-{series})" in u.get("style", "")]
    return len(uses)


def assert_draws(points, x, y):
    """The points are an affine image of the data: SVG's y grows downwards, its numbers have six decimals."""
    assert len(points) == len(x)
    for drawn, data, sign in ((points[:, 0], x, 1), (points[:, 1], y, -1)):
        slope, offset = np.polyfit(data, drawn, 1)
        assert sign * slope > 0
        np.testing.assert_allclose(drawn, slope * np.asarray(data) + offset, atol=1e-3)


def all_charts():
    rng = np.random.default_rng(0)
    grid = np.linspace(0, 1, 11)
    return [
        *learning_charts([{"step": i, "train_loss": 1.0 / i, "valid_loss": 1.1 / i, "lr": 0.1} for i in range(1, 6)]),
        roc_chart(Roc(grid, np.sqrt(grid), 0.7), "roc"),
        calibration_chart(Calibration(grid, grid**2, np.arange(11)), "calibration"),
        histogram_chart(Histogram(grid, {"no": np.arange(10), "yes": np.ones(10)}), "Scores", "score", "scores"),
        scatter_chart(rng.normal(size=50), rng.normal(size=50), "scatter"),
        curves_chart(Curves(grid + 1, {"a": grid, "b": grid**2}, "x", "y", {"best": (1.5, 0.5)}, log_x=True), "C", "c"),
    ]


@pytest.mark.parametrize("chart", all_charts(), ids=lambda chart: chart.title)
def test_every_colour_is_a_variable_of_the_page(chart):
    assert not re.search(r"#[0-9a-fA-F]{3,8}\b(?!-)", re.sub(r'(href="|url\()#[\w-]+', "", str(chart.svg)))
    paints = re.findall(r"(?:fill|stroke|color): ([^;\"]+)", str(chart.svg))
    assert set(paints) <= {"none", *(f"var({name})" for name in VARIABLES.values())}
    texts = list(parse(chart).iter("text"))
    assert texts
    assert all("fill: var(--" in text.get("style", "") for text in texts)  # SVG's default is black


@pytest.mark.parametrize("chart", all_charts(), ids=lambda chart: chart.title)
def test_a_chart_scales_names_itself_and_leaves_fonts_to_the_page(chart):
    root = parse(chart)
    assert root.attrib == {"viewBox": root.get("viewBox"), "role": "img", "aria-label": chart.title}
    assert root[0].tag == "title"
    assert root[0].text == chart.title
    assert "font" not in str(chart.svg)
    assert "xmlns" not in str(chart.svg)
    assert not list(root.iter("style"))


def test_ids_resolve_and_differ_between_charts():
    charts = all_charts()
    ids = [element.get("id") for chart in charts for element in parse(chart).iter() if element.get("id")]
    assert len(ids) == len(set(ids)) > 0
    used = [name for chart in charts for name in re.findall(r'(?:href="|url\()#([\w-]+)', str(chart.svg))]
    assert set(used) == set(ids)


def test_roc_curve_and_its_area_are_drawn():
    fpr, tpr = np.array([0.0, 0.1, 0.5, 1.0]), np.array([0.0, 0.6, 0.9, 1.0])
    chart = roc_chart(Roc(fpr, tpr, 0.8123456), "roc")
    (points,) = lines(chart)
    assert_draws(points, fpr, tpr)
    assert chart.note == "AUC 0.8123"


@pytest.mark.parametrize("auc", [None, NAN])
def test_roc_without_an_area_says_nothing_of_it(auc):
    assert roc_chart(Roc([0, 1], [0, 1], auc), "roc").note == ""


def test_learning_curve_has_a_chart_per_quantity_and_a_line_per_split():
    rows = [
        {"step": 10 * i, "train_loss": 1 / i, "valid_loss": 2 / i, "valid_auc": i / 9, "lr": 0.1} for i in (1, 2, 5)
    ]
    loss, auc, rate = learning_charts(rows)
    assert [chart.title for chart in (loss, auc, rate)] == ["Loss by step", "AUC by step", "Learning rate by step"]
    assert [label for label, _ in loss.legend] == ["train", "valid"]
    assert_draws(lines(loss, 1)[0], [10, 20, 50], [1, 0.5, 0.2])
    assert_draws(lines(loss, 2)[0], [10, 20, 50], [2, 1, 0.4])
    assert [label for label, _ in auc.legend] == ["valid"]
    assert rate.legend == ()


def test_learning_curve_skips_what_was_not_measured_and_counts_what_diverged():
    losses = [0.9, NAN, 0.5, float("inf"), 0.3]
    rows = [{"epoch": i, "train_loss": loss, "valid_loss": None, "note": "text"} for i, loss in enumerate(losses)]
    rows[0]["valid_loss"] = 0.8
    (chart,) = learning_charts(rows)
    assert_draws(lines(chart)[0], [0, 2, 4], [0.9, 0.5, 0.3])
    assert num_markers(chart, series=2) == 1
    assert chart.note == "not finite: 2 of the values"


def test_learning_curve_of_nothing_finite_draws_nothing():
    assert learning_charts([{"step": 1, "train_loss": NAN}]) == []
    assert learning_charts([]) == []


def test_calibration_leaves_empty_bins_out():
    chart = calibration_chart(Calibration([0.1, NAN, 0.5, 0.9], [0.2, NAN, 0.4, 0.8], [10, 0, 5, 1]), "c")
    assert_draws(lines(chart)[0], [0.1, 0.5, 0.9], [0.2, 0.4, 0.8])


def test_calibration_of_no_rows_draws_its_axes():
    chart = calibration_chart(Calibration([NAN], [NAN], [0]), "c")
    assert not num_markers(chart)
    assert "mean prediction" in chart.svg


def test_histogram_draws_shares_so_that_labels_of_different_size_compare():
    edges = [0.0, 0.5, 1.0]
    chart = histogram_chart(Histogram(edges, {"no": [300, 100], "yes": [3, 1]}), "Scores", "score", "h")
    common, rare = lines(chart, 1)[-1], lines(chart, 2)[-1]
    np.testing.assert_allclose(common, rare)  # 300:100 and 3:1 are the same shares
    heights = common[:, 1].max() - np.unique(common[:, 1])[:2]  # of the bins of 0.75 and 0.25 above the base
    assert heights[0] / heights[1] == pytest.approx(3)


def test_histogram_of_no_rows_is_flat():
    chart = histogram_chart(Histogram([0, 1, 2], {"rows": [0, NAN]}), "Residuals", "x", "h")
    assert np.ptp(lines(chart)[-1][:, 1]) == 0


@pytest.mark.parametrize(("num_rows", "shown"), [(10, 10), (1000, 1000), (50_001, 1000)])
def test_scatter_draws_at_most_a_thousand_points_and_says_of_how_many(num_rows, shown):
    values = np.arange(num_rows, dtype=float)
    chart = scatter_chart(values, values, "s")
    assert num_markers(chart) == shown <= MAX_POINTS
    assert chart.note == f"{shown:,} of {num_rows:,} rows"


def test_scatter_drops_rows_that_are_not_finite():
    chart = scatter_chart([1.0, NAN, 3.0], [1.0, 2.0, float("inf")], "s")
    assert num_markers(chart) == 1
    assert scatter_chart([], [], "s").note == "0 of 0 rows"


def test_curves_draw_every_line_and_mark():
    x = np.array([1.0, 10.0, 100.0, 1000.0])
    curves = Curves(x, {"loss": [4, 3, 2, NAN], "other": [1, 2, 3, 4]}, "lr", "loss", {"best": (10, 3)}, log_x=True)
    chart = curves_chart(curves, "Loss", "c")
    assert_draws(lines(chart, 1)[0], np.log10(x[:3]), [4, 3, 2])
    assert_draws(lines(chart, 2)[0], np.log10(x), [1, 2, 3, 4])
    assert [label for label, _ in chart.legend] == ["loss", "other", "best"]
    assert num_markers(chart, 3) == 1
    assert curves_chart(Curves(x, {"alone": x}, "x"), "One line", "c").legend == ()


def test_curves_on_logarithmic_axes_leave_out_what_has_no_logarithm():
    curves = Curves([-1.0, 1.0, 10.0, 100.0], {"y": [5.0, 0.0, 10.0, 100.0]}, "x", log_x=True, log_y=True)
    assert_draws(lines(curves_chart(curves, "Few", "c"))[0], [1, 2], [1, 2])


def test_dollar_signs_in_series_names_stay_text():
    chart = histogram_chart(Histogram([0, 1], {"$x^": [1], "$_{": [2]}), "Scores", "score", "h")
    assert [label for label, _ in chart.legend] == ["$x^", "$_{"]


def test_more_series_than_colours_repeat_the_colours():
    chart = histogram_chart(Histogram([0, 1], {str(i): [1] for i in range(6)}), "Scores", "score", "h")
    assert [color for _, color in chart.legend][4:] == ["--series-1", "--series-2"]


def test_drawing_leaves_global_settings_alone():
    import matplotlib

    before = dict(matplotlib.rcParams)
    all_charts()
    assert dict(matplotlib.rcParams) == before
