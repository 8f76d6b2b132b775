"""Names that operators put together: they overwrite nothing."""

from functools import partial

import pandas as pd
import pytest

from gigabatch.features import operators
from gigabatch.features.errors import DataError
from gigabatch.features.operators import operator_class, operator_names
from gigabatch.features.operators.base import FittedOperator

NAMED = pd.DataFrame({
    "n": [1.0, None], "t": [5, 6], "k": pd.Series(["a", "b"], dtype="str"), "words": ["X|y", "y"], "row": [0, 1],
})  # fmt: skip
MAKERS = {
    "n_na": operators.FillMissing("n", "all"),
    "is_y": operators.TextFlags("words", "is_"),
    "words_3": operators.TextHash("words", "words", 4),
    "n_mean_by_k": operators.JoinGroupby(["k"], ["n"], ["mean"]),
    "n_encoded_by_k": operators.FoldedTargetEncoding(["k"], ["n"], "row"),
    "at_hour": operators.DateParts("t", ["hour"], "at"),
    "seen_weights": operators.History(["k"], "t", "row", "words", 3, "seen", half_life=2.0),
    "wait_min_mean": operators.Waiting(["k"], "t", "row", "wait"),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_name_that_is_put_together_overwrites_no_column(name):
    operator = MAKERS[name]

    def run(frame):
        state = operator.fit([NAMED]) if isinstance(operator, FittedOperator) else None
        calls = [operator] if state is None else [partial(operator.apply, state=state),
                                                  partial(operator.apply_to_train, state=state)]  # fmt: skip
        return [call(frame) for call in calls]

    assert all(name in found.columns for found in run(NAMED))
    with pytest.raises(
        DataError, match=f"{type(operator).__name__}: column '{name}' would be overwritten, it is there"
    ):
        run(NAMED.assign(**{name: 1}))


def test_every_operator_that_puts_names_together_is_among_these():
    made = {type(operator) for operator in MAKERS.values()}
    for kind in map(operator_class, operator_names()):
        if kind not in made and not {"chosen", "columns_after"} & vars(kind).keys():
            assert not {"outputs", "outputs_of"} & vars(kind).keys(), f"{kind.__name__}: say `chosen`, or test it above"


@pytest.mark.parametrize(
    "operator",
    [
        operators.JoinGroupby(["k"], ["n", "n"], ["mean"]),
        operators.JoinExternal(NAMED, ["row"], {"n": "x", "t": "x"}),
        operators.DateParts("t", ["hour", "hour"], "at"),
    ],
    ids=repr,
)
def test_two_outputs_of_one_name_are_refused(operator):
    with pytest.raises(DataError, match=r"column '\w+' would be overwritten, it is made more than once"):
        operator.apply(NAMED, operator.fit([NAMED])) if isinstance(operator, FittedOperator) else operator(NAMED)


def test_columns_that_only_an_operator_sees_overwrite_none():
    frame = NAMED.assign(fold__=NAMED["k"], left_at=NAMED["k"])
    plain = operators.FoldedTargetEncoding(["k"], ["n"], "row")
    hidden = operators.FoldedTargetEncoding(["fold__"], ["n"], "row")
    found = hidden.apply(frame, hidden.fit([frame]))["n_encoded_by_fold__"]
    assert found.tolist() == plain.apply(frame, plain.fit([frame]))["n_encoded_by_k"].tolist()
    assert operators.Waiting(["left_at"], "t", "row", "w")(frame)["w"].tolist() == [0, 0]
    with pytest.raises(DataError, match="the key 'n__sum_1' has the name of a sum"):
        operators.FoldedTargetEncoding(["n__sum_1"], ["n"], "row")
    with pytest.raises(DataError, match="ExplodeLists: column 'place' would be overwritten"):
        operators.ExplodeLists({"words": ("word", "string")}, "place", ["place"])


@pytest.mark.parametrize(
    "operator", [operators.Clip("n", 0.0, output=""), operators.Normalize("row", output="")], ids=repr
)
def test_an_output_without_a_name_is_refused(operator):
    with pytest.raises(DataError, match=f"{type(operator).__name__}: an output has no name"):
        operator.apply(NAMED, operator.fit([NAMED])) if isinstance(operator, FittedOperator) else operator(NAMED)


def test_a_star_imports_every_operator():
    found = {}
    exec("from gigabatch.features.operators import *", found)
    assert found["Categorify"] is operators.Categorify
    assert {operator_class(name).__name__ for name in operator_names()} <= set(found)
