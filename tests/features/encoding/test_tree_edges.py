"""Edges at the splits of a tree of one column, against scikit-learn's trees of the same column."""

import numpy as np
import pandas as pd
import pytest
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from gigabatch.features.encoding.online import OnlineTransformer
from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.encoding.settings import PreprocessorSettings
from gigabatch.features.errors import DataError
from gigabatch.features.schema import Column, Schema, Target

TARGETS = {
    "binary": (Target("label", "binary"), "float32"),
    "multiclass": (Target("label", "multiclass", num_outputs=4), "int32"),
    "regression": (Target("label", "regression"), "float32"),
}


def schema_of(*targets, weight=False):
    columns = [Column("x", "continuous", "float32")]
    columns += [Column(target.name, "target", dtype) for target, dtype in targets]
    return Schema(
        (*columns, *([Column("w", "weight", "float32")] if weight else [])), tuple(target for target, _ in targets)
    )


def table(task, rows=6_000, values=900, seed=1):
    """Of as many distinct values, a null in seven rows, weights, and labels that hang on x by leaps."""
    generator = np.random.default_rng(seed)
    x = generator.choice(generator.lognormal(3, 1, values).astype(np.float32), rows)
    wave = np.sin(3 * np.log(x)) + (x > 40)
    if task == "binary":
        label = (generator.random(rows) < 1 / (1 + np.exp(-2 * wave))).astype(np.float32)
    elif task == "multiclass":
        label = np.clip(np.floor(wave + generator.normal(1.5, 0.7, rows)), 0, 3).astype(np.int32)
    else:
        label = (1_000 + wave + generator.normal(0, 0.5, rows)).astype(np.float32)
    weight = generator.choice([0.25, 1, 3.7], rows).astype(np.float32)
    frame = pd.DataFrame({"x": x, "label": label, "w": weight})
    frame.loc[::7, "x"] = np.nan
    return frame


def tree_of(frame, task, bins, weighted):
    """Edges as `rtdl_num_embeddings.compute_bins` takes them from scikit-learn's tree: its thresholds and both ends."""
    known = frame[frame["x"].notna()]
    kind = DecisionTreeRegressor if task == "regression" else DecisionTreeClassifier
    x, label = known[["x"]].to_numpy(), known["label"].to_numpy("float64")
    weight = known["w"].to_numpy() if weighted else None
    tree = kind(max_leaf_nodes=bins, min_samples_leaf=64, random_state=0).fit(x, label, sample_weight=weight).tree_
    return np.unique([x.min(), x.max(), *tree.threshold[tree.children_left != tree.children_right]])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("bins", [2, 5, 48])
@pytest.mark.parametrize("task", TARGETS)
def test_edges_are_the_thresholds_of_a_tree_of_the_column(task, bins, weighted):
    frame = table(task)
    settings = PreprocessorSettings(bins=bins, edges="tree", distinct=0)
    found = Preprocessor(schema_of(TARGETS[task], weight=weighted), settings).fit([frame]).edges["x"]
    expected = tree_of(frame, task, bins, weighted)
    assert len(expected) > min(bins, 10)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("task", TARGETS)
@pytest.mark.parametrize("values", [900, 60_000])
def test_edges_depend_on_neither_partitions_nor_order_nor_way_of_fitting(task, values):
    frame = table(task, rows=40_000, values=values)
    schema, settings = schema_of(TARGETS[task], weight=True), PreprocessorSettings(edges="tree")
    found = Preprocessor(schema, settings).fit([frame])
    shuffled = frame.sample(frac=1, random_state=2)
    cut = Preprocessor(schema, settings).fit([shuffled[:7], shuffled[7:30_000], shuffled[30_000:]])
    packed = Preprocessor(schema, settings)
    packed.fit_pack([frame[:20_000], frame[20_000:]])
    assert found.edges == cut.edges == packed.edges
    assert found.checksum == cut.checksum == packed.checksum
    assert 10 < len(found.edges["x"]) <= 49
    quantiles = Preprocessor(schema, PreprocessorSettings()).fit([frame])
    assert found.edges != quantiles.edges
    assert np.array_equal(found.pack(frame), quantiles.pack(frame))


@pytest.mark.parametrize(
    ("task", "declared", "written"),
    [
        ("binary", "bool", {0: "false", 1: "TRUE"}), ("binary", "float32", {0: "0", 1: "1.0"}),
        ("multiclass", "int32", {0: "0", 1: "1", 2: "2.0", 3: "3"}),
    ],
)  # fmt: skip
def test_labels_as_text_give_the_edges_of_the_labels_that_they_are(task, declared, written):
    frame = table(task)
    schema = schema_of((TARGETS[task][0], declared))
    settings = PreprocessorSettings(edges="tree", bins=16)
    wanted = Preprocessor(schema, settings).fit([frame.astype({"label": declared})]).edges
    texts = frame.assign(label=frame["label"].map(written))
    found = [Preprocessor(schema, settings) for _ in range(2)]
    found[0].fit([texts])
    found[1].fit_pack([texts])
    assert len(wanted["x"]) > 5
    assert [one.edges for one in found] == [wanted, wanted]
    with pytest.raises(DataError, match=f"column 'label' is declared {declared} but holds"):
        found[0].fit([texts.assign(label="maybe")])


def test_of_more_values_than_cells_the_tree_is_nearly_that_of_all_values():
    frame = table("regression", rows=60_000, values=60_000)
    found = Preprocessor(schema_of(TARGETS["regression"]), PreprocessorSettings(bins=8, edges="tree")).fit([frame])
    known = frame[frame["x"].notna()]

    def error(edges):
        leaf = np.searchsorted(edges[1:-1], known["x"], side="left")
        return float(known["label"].groupby(leaf).var(ddof=0).mul(np.bincount(leaf)).sum())

    assert error(np.array(found.edges["x"])) < 1.003 * error(tree_of(frame, "regression", 8, False))


def test_few_values_are_each_an_edge_and_a_column_of_one_value_has_none():
    frame = table("binary", rows=12_000, values=80)
    schema = schema_of(TARGETS["binary"])
    every = tuple(np.unique(frame["x"].dropna()).tolist())
    assert len(every) == 80
    assert Preprocessor(schema, PreprocessorSettings(edges="tree")).fit([frame]).edges["x"] == every
    few = Preprocessor(schema, PreprocessorSettings(edges="tree", distinct=0)).fit([frame]).edges["x"]
    assert 2 < len(few) <= 49
    assert Preprocessor(schema, PreprocessorSettings(edges="tree")).fit([frame.assign(x=np.float32(2))]).edges == {}
    assert Preprocessor(schema, PreprocessorSettings(edges="tree", bins=0)).fit([frame]).edges == {}


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_a_column_that_tells_nothing_keeps_its_ends(label):
    """Labels are all alike where it is known, and another where it is not."""
    frame = table("binary")
    known = frame["x"].dropna()
    frame["label"] = np.where(frame["x"].notna(), label, 1 - label).astype(np.float32)
    found = Preprocessor(schema_of(TARGETS["binary"]), PreprocessorSettings(edges="tree")).fit([frame])
    assert found.edges["x"] == (float(known.min()), float(known.max()))


def test_rows_without_weight_count_for_nothing_but_their_value():
    frame = table("regression")
    frame["w"] = np.where(frame["x"] > 40, 0, frame["w"]).astype(np.float32)
    settings = PreprocessorSettings(edges="tree", distinct=0)
    found = Preprocessor(schema_of(TARGETS["regression"], weight=True), settings).fit([frame]).edges["x"]
    assert sum(edge > 40.5 for edge in found) == 1  # the end


def test_several_targets_share_a_tree_each_over_its_variance():
    """scikit-learn's tree of several outputs takes the mean of their errors, here of labels of variance 1."""
    frame = table("regression").assign(other=table("binary", seed=1)["label"])
    targets = [TARGETS["regression"], (Target("other", "binary"), "float32")]
    settings = PreprocessorSettings(bins=12, edges="tree", distinct=0)
    found = Preprocessor(schema_of(*targets), settings).fit([frame]).edges["x"]
    known = frame[frame["x"].notna()]
    labels = known[["label", "other"]].to_numpy("float64")
    tree = DecisionTreeRegressor(max_leaf_nodes=12, min_samples_leaf=64, random_state=0)
    tree = tree.fit(known[["x"]].to_numpy(), labels / labels.std(axis=0)).tree_
    np.testing.assert_allclose(found[1:-1], np.sort(tree.threshold[tree.children_left != tree.children_right]))
    scaled = frame.assign(label=frame["label"] * 64)  # a unit changes nothing
    assert Preprocessor(schema_of(*targets), settings).fit([scaled]).edges["x"] == found


def test_edges_are_saved_stay_with_growth_and_serve_single_rows(tmp_path):
    frame, schema = table("binary"), schema_of(TARGETS["binary"])
    preprocessor = Preprocessor(schema, PreprocessorSettings(edges="tree", distinct=0)).fit([frame])
    preprocessor.save(tmp_path)
    loaded = Preprocessor.load(tmp_path)
    assert (loaded.edges, loaded.settings) == (preprocessor.edges, preprocessor.settings)
    floats = OnlineTransformer.load(tmp_path)({"x": 12.5})[1]
    row = pd.DataFrame({"x": np.array([12.5], np.float32)})
    assert floats.tolist() == loaded.transform(row, targets=False).to_numpy()[0].tolist()
    more = table("binary", seed=3)
    loaded.update([more[["x"]]])  # needs no label
    loaded.carried_to(schema, loaded.settings).grow([more])
    assert loaded.edges == preprocessor.edges
    with pytest.raises(DataError, match="edges of 'x' is quantile, not tree"):
        loaded.carried_to(schema, PreprocessorSettings(distinct=0))


def test_one_column_may_have_other_edges_than_all():
    frame = table("binary")
    frame["y"] = frame["x"]
    columns = (Column("y", "continuous", "float32"), *schema_of(TARGETS["binary"]).columns)
    schema = Schema(columns, (TARGETS["binary"][0],))
    columns = {"x": {"edges": "tree", "distinct": 0}}
    found = Preprocessor(schema, PreprocessorSettings(columns=columns)).fit([frame]).edges
    plain = Preprocessor(schema, PreprocessorSettings()).fit([frame]).edges
    assert found["y"] == plain["y"] == plain["x"]
    assert found["x"] == Preprocessor(schema, PreprocessorSettings(edges="tree", distinct=0)).fit([frame]).edges["x"]


@pytest.mark.parametrize("task", TARGETS)
@pytest.mark.parametrize("label", [0, 1])
def test_labels_that_are_all_alike_are_refused_and_one_target_that_varies_is_enough(task, label):
    """As where rows are positives alone, whose negatives are drawn: a bin from end to end would tell nothing."""
    target, dtype = TARGETS[task]
    frame, settings = table(task).assign(label=np.array(label, dtype)), PreprocessorSettings(edges="tree")
    message = (
        r"preprocess\.edges: tree of column 'x': all labels of 'label' in the train split are alike, so no tree tells "
        r"them apart.*train\.negatives.*preprocess\.edges=quantile"
    )
    parts = [frame[:1000], frame[1000:]]
    with pytest.raises(DataError, match=message):
        Preprocessor(schema_of((target, dtype)), settings).fit(parts)
    with pytest.raises(DataError, match=message):
        Preprocessor(schema_of((target, dtype)), settings).fit_pack(parts)
    frame.loc[5, "label"] = 1 - label
    weighed = frame.assign(w=np.where(frame.index == 5, 0, 1).astype(np.float32))
    with pytest.raises(DataError, match=message):  # a row that weighs nothing says nothing
        Preprocessor(schema_of((target, dtype), weight=True), settings).fit([weighed])
    frame["other"] = table("binary")["label"]
    schema = schema_of((target, dtype), (Target("other", "binary"), "float32"))
    found = Preprocessor(schema, settings).fit([frame.assign(label=np.array(label, dtype))]).edges
    only = Preprocessor(schema_of((Target("other", "binary"), "float32")), settings).fit([frame]).edges
    assert found == only
    few = frame.assign(x=(frame["x"] > 20).astype("float32"), label=np.array(label, dtype))
    assert Preprocessor(schema_of((target, dtype)), settings).fit([few]).edges["x"] == (0.0, 1.0)  # without a tree


def test_what_no_tree_can_be_fitted_on_is_refused():
    frame, settings = table("binary"), PreprocessorSettings(edges="tree")
    with pytest.raises(DataError, match=r"preprocess\.edges: a tree needs a target.*preprocess\.edges=quantile"):
        Preprocessor(schema_of(), settings).fit([frame])
    large = (Target("label", "multiclass", num_outputs=1025), "int32")
    with pytest.raises(DataError, match="'label' has 1025 classes, and a tree takes at most 1024"):
        Preprocessor(schema_of(large), settings).fit([frame])
    with pytest.raises(DataError, match="label"):
        Preprocessor(schema_of(TARGETS["binary"]), settings).fit([frame[["x"]]])
    unlabelled = frame.assign(label=frame["label"].where(frame.index > 0))
    with pytest.raises(DataError, match="target 'label' is null in 1 of 6000 rows"):
        Preprocessor(schema_of(TARGETS["binary"]), settings).fit([unlabelled])
    for label, weight, bound in (
        (1e33, 1.0, r"4\.29e\+24 with weights of up to 1,"),
        (-1e25, 4.0, r"2\.15e\+24 .* 4,"),
    ):
        wide = table("regression").assign(w=np.float32(weight))
        wide.loc[1, "label"] = np.float32(label)
        message = rf"tree of column 'x', target 'label': labels beyond {bound} .*preprocess\.edges=quantile"
        with pytest.raises(DataError, match=message):
            Preprocessor(schema_of(TARGETS["regression"], weight=True), settings).fit([wide])
    for wrong in ({"edges": "trees"}, {"columns": {"x": {"edges": True}}}):
        with pytest.raises(DataError, match=r"preprocess\.edges: expected quantile or tree"):
            PreprocessorSettings(**wrong)
