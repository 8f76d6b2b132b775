"""`Workflow` and `Preprocessor` with scikit-learn's interface, for its pipelines and column transformers."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted, validate_data

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.encoding.settings import PreprocessorSettings
from gigabatch.features.engines.arrow_columns import exact_frame_of
from gigabatch.features.engines.arrow_tables import arrow_table
from gigabatch.features.engines.arrow_types import plain_column
from gigabatch.features.errors import DataError
from gigabatch.features.operators.base import listed
from gigabatch.features.reading.sources import cast, without_null_words
from gigabatch.features.schema import Column, Schema
from gigabatch.features.workflow.failed_fit import keeps_last_fit
from gigabatch.features.workflow.flow import raw_inputs
from gigabatch.features.workflow.steps import READING, parse_steps
from gigabatch.features.workflow.workflow import Workflow
from gigabatch.pipeline.config.config import checked_settings, with_column_settings
from gigabatch.pipeline.init.draft import Draft
from gigabatch.pipeline.init.frame import draft_frame

log = logging.getLogger(__name__)


def has_names(X: Any) -> bool:
    """Whether the rows are a frame whose columns are named by text; one whose columns are numbered is a matrix."""
    if isinstance(X, pd.DataFrame):
        return any(isinstance(name, str) for name in X.columns)
    return hasattr(X, "columns") or hasattr(X, "column_names") or hasattr(X, "__arrow_c_stream__")


def read_frame(estimator: Any, X: Any, reset: bool) -> pd.DataFrame:
    """Rows as a frame of pandas, checked against those of the fit, as scikit-learn's estimators do.

    A matrix becomes columns x0, x1, ..., whose NaN is null; of a frame the columns are those of the fit, in its order.
    A matrix after a fit on a frame, or a frame after one on a matrix, has the fit's names: scikit-learn warns, and goes
    by places.
    """
    named = has_names(X)
    if named:
        kind = type(estimator).__name__
        known = X if isinstance(X, pd.DataFrame) else arrow_table(X, kind)  # whose names scikit-learn can read
        validate_data(estimator, known, skip_check_array=True, reset=reset)
        table = arrow_table(known, kind)
        if not len(table):
            raise ValueError("Found array with 0 sample(s) while a minimum of 1 is required.")
        frame = exact_frame_of(table)
    else:
        _refuse_unnamed(estimator, X, reset)
        frame = pd.DataFrame(
            validate_data(estimator, X, dtype="numeric", ensure_all_finite="allow-nan", reset=reset)
        ).add_prefix("x")
    if isinstance(X, pd.DataFrame):  # also of numbered columns, else a ColumnTransformer puts other rows beside these
        frame.index = X.index
    fitted = getattr(estimator, "feature_names_in_", None)
    if named != (fitted is not None):
        frame.columns = [f"x{place}" for place in range(frame.shape[1])] if fitted is None else list(fitted)
    return frame


def _refuse_unnamed(estimator: Any, X: Any, reset: bool) -> None:
    """`DataError` for a frame of numbered columns with categories, text or times, of which a matrix of numbers would
    make numbers (of the categories 1, 2, 3), or an error that names no column; and for columns that are named as
    categorical where none has a name.

    After the fit categories are taken, whose column it has told what they are."""
    kind = type(estimator).__name__
    if reset and (named := [*_given(estimator, "categorical")]):
        raise DataError(
            f"{kind}: categorical names {named[0]!r}, and a matrix, or a frame whose columns are numbered, is all "
            "numbers. Give a frame whose columns have names."
        )
    plain = pd.api.types
    for name, dtype in X.dtypes.items() if isinstance(X, pd.DataFrame) else ():
        known = not reset and isinstance(dtype, pd.CategoricalDtype)
        # Arrow's booleans are no numbers to pandas.
        if not (known or any(of(dtype) for of in (plain.is_numeric_dtype, plain.is_bool_dtype, plain.is_object_dtype))):
            raise DataError(
                f"{kind}: column {name!r} is of type {dtype}, and a frame whose columns are numbered is read as a "
                "matrix of numbers. Give names: X.columns = [str(name) for name in X.columns]."
            )


def _given(estimator: Any, role: str) -> Any:
    """The columns that an estimator is told are of the role, a tuple or a mapping of them to types."""
    named = getattr(estimator, role, None)
    if named is None:
        return ()
    return named if isinstance(named, Mapping) else listed(named, type(estimator).__name__, role)


def draft_of(estimator: Any, frame: pd.DataFrame, lists: bool = True) -> Draft:
    """What the columns of a frame are where `categorical` and `continuous` of the estimator do not say it.

    lists: whether lists of words may be made of texts.
    """
    kind = type(estimator).__name__
    categorical, continuous = _given(estimator, "categorical"), _given(estimator, "continuous")
    draft = draft_frame(arrow_table(frame, kind), categorical=categorical, continuous=continuous, lists=lists)
    if not draft.has_features:
        raise DataError(f"{kind}: no column is left to learn from: {draft.told()}.")
    log.info("%s: %s", kind, draft.told())
    if draft.left_out:
        reasons = ", ".join(f"{name} ({why})" for name, why in draft.left_out.items())
        log.warning("%s: left out %s. To keep a column name it under categorical or continuous.", kind, reasons)
    return draft


def labels_of_arrow(y: Any) -> Any:
    """An array of Arrow's as one that NumPy reads as it is: a chunked one of codes gives it other values in place of
    nulls, and scikit-learn takes none that has to be copied. What is none of Arrow's stays as it is."""
    if not isinstance(y, pa.Array | pa.ChunkedArray):
        return y
    return plain_column(pa.chunked_array([y]) if isinstance(y, pa.Array) else y)


class _FrameTransformer(TransformerMixin, BaseEstimator):
    """Base of the two: frames in, frames of pandas out."""

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the columns that `transform` gives, [F] of dtype object."""
        check_is_fitted(self)
        _check_feature_names_in(self, input_features, generate_names=False)
        return np.asarray(self.columns_out_, dtype=object)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.string = tags.input_tags.categorical = True
        tags.transformer_tags.preserves_dtype = []  # types follow from what columns are
        return tags


class PreprocessorTransformer(_FrameTransformer):
    """Encode columns as `Preprocessor` does: ids of categories, filled and scaled floats, flags of nulls.

    Parameters
    ----------
    categorical, continuous
        Columns of these kinds; those that neither names are what `gigabatch init` takes them for (docs/init.md), with
        the steps that clean text, read numbers and hold infinities. Dates and lists are refused.
    settings
        Of `PreprocessorSettings`, such as `{"min_count": 2}`.

    Attributes
    ----------
    workflow_ : Workflow
        The steps before it.
    preprocessor_ : Preprocessor
        The fitted one.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch import PreprocessorTransformer
    >>> train = pd.DataFrame({"city": ["Oslo", "Oslo", "Bonn"], "price": [1.0, 2.0, 3.0]})
    >>> encoder = PreprocessorTransformer().fit(train)
    >>> encoder.transform(pd.DataFrame({"city": ["Bonn", None], "price": [2.0, None]}))
       city  price  price_na
    0     4    0.0       0.0
    1     1    0.0       0.0
    >>> encoder.get_feature_names_out().tolist()
    ['city', 'price', 'price_na']
    """

    def __init__(
        self,
        categorical: Sequence[str] | Mapping[str, str] = (),
        continuous: Sequence[str] = (),
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.categorical, self.continuous, self.settings = categorical, continuous, settings

    @keeps_last_fit
    def fit(self, X: Any, y: Any = None) -> PreprocessorTransformer:
        """Learn vocabularies, fills and scales; `y` is not used.

        Raises
        ------
        DataError
            Where a column has a type of neither kind.
        """
        frame = read_frame(self, X, reset=True)
        if has_names(X):
            draft = draft_of(self, frame, lists=False)
            categories, numbers = draft.categories, tuple(draft.features["continuous"])
            inputs, steps = draft.features.get("inputs", {}), draft.features.get("steps", ())
            dates = [name for name, dtype in inputs.items() if dtype.startswith("datetime")]
            if strange := [*dates, *draft.features.get("lists", ())]:
                raise DataError(
                    f"PreprocessorTransformer: column {strange[0]!r} holds dates or lists, which it does not encode. "
                    "Leave it out, or make numbers of it by a WorkflowTransformer before."
                )
        else:
            categories, numbers, inputs, steps = {}, tuple(frame.columns), {}, ()
        columns = [Column(name, "categorical", dtype) for name, dtype in categories.items()]
        columns += [Column(name, "continuous", "float32") for name in numbers]
        schema = Schema(tuple(columns), ())
        settings = checked_settings(PreprocessorSettings, with_column_settings(self.settings or {}), "settings")
        types = {name: dtype for name, dtype in (schema.dtypes() | inputs).items() if name in frame}
        self.workflow_ = Workflow(parse_steps(list(steps), "pandas", READING), (), types)
        self.workflow_.fit([self._raw(frame)])
        self.preprocessor_ = Preprocessor(schema, settings)
        self.preprocessor_.fit([self._typed(frame)])
        self.columns_out_ = list(self.preprocessor_.transform(self._typed(frame.head(1)), targets=False).columns)
        return self

    def transform(self, X: Any) -> pd.DataFrame:
        """Rows encoded: int32 ids, float32 continuous and `_na` columns, on the frame's index."""
        check_is_fitted(self)
        return self.preprocessor_.transform(self._typed(read_frame(self, X, reset=False)), targets=False)

    def _typed(self, frame: pd.DataFrame) -> pd.DataFrame:
        schema = self.preprocessor_.schema
        made = self.workflow_.transform(self._raw(frame))
        return cast(made, schema.dtypes(), type(self).__name__, nullable=schema.names("categorical"))

    def _raw(self, frame: pd.DataFrame) -> pd.DataFrame:
        types = self.workflow_.dtypes
        known = without_null_words(frame[list(types)], [""], types)
        return cast(known, types, type(self).__name__, set(types), self.workflow_.decimal_marks)


class WorkflowTransformer(_FrameTransformer):
    """Apply the operators of a `Workflow`.

    Parameters
    ----------
    steps
        As `Workflow.from_steps` takes them.
    outputs
        Columns that `transform` gives; None: every one that is there after the steps.
    label
        What steps call `y`, where they read it. A column of X of that name is a feature, and is refused where steps
        read it and `y` is passed.

    Attributes
    ----------
    workflow_ : Workflow
        The fitted one.

    Notes
    -----
    `fit_transform` gives the rows of the fit what `Workflow.fit_transform` gives them: an encoding of the label leaves
    a row's own label out, so it is not `fit(X, y).transform(X)`.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch import WorkflowTransformer
    >>> train = pd.DataFrame({"price": [0.0, 2.0, 4.0]})
    >>> steps = WorkflowTransformer([{"min_max": {"column": "price", "output": "share"}}], outputs=["share"])
    >>> steps.fit(train).transform(pd.DataFrame({"price": [1.0]}))
       share
    0   0.25
    """

    def __init__(
        self, steps: Sequence[Mapping[str, Any]] = (), outputs: Sequence[str] | None = None, label: str = "y"
    ) -> None:
        self.steps, self.outputs, self.label = steps, outputs, label

    @keeps_last_fit
    def fit(self, X: Any, y: Any = None) -> WorkflowTransformer:
        """Learn what the steps need.

        Raises
        ------
        DataError
            Where a step is misspelt or a column is missing; the message names the step. Where steps read a name that
            both `y` and a column of X have, or that column holds the labels of `y`.
        """
        self._fit(X, y)
        return self

    @keeps_last_fit
    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> pd.DataFrame:
        """`fit`, and the same rows as the fit sees them."""
        fitted, frame = self._fit(X, y)
        made = fitted.transform_train(frame, whole_groups=True)
        made = made[self.columns_out_]
        made.index = frame.index
        return made

    def _fit(self, X: Any, y: Any) -> tuple[Workflow, pd.DataFrame]:
        outputs = None if self.outputs is None else listed(self.outputs, "WorkflowTransformer", "outputs")
        frame, y = read_frame(self, X, reset=True), labels_of_arrow(y)
        steps = parse_steps([dict(step) for step in self.steps], "pandas", READING)
        reads_label = y is not None and self.label in raw_inputs(steps)
        if reads_label and self.label in frame.columns:
            raise DataError(
                f"WorkflowTransformer: steps read {self.label!r}, which is a column of X and the label that y gives. "
                "Call the label by another name, such as label='target', where steps mean y; leave y out where they "
                "mean the column."
            )
        if y is not None and self.label in frame.columns and _entries(frame[self.label]) == _entries(y):
            raise DataError(
                f"WorkflowTransformer: column {self.label!r} of X holds the labels that y gives, and would be a "
                "feature. Drop it from X; where it is meant, call the label by another name, such as label='target'."
            )
        if reads_label:
            frame = frame.assign(**{self.label: np.asarray(y)})
        fitted = Workflow(steps, [self.label] * reads_label)
        if changing := [step for step in fitted.steps if step.changes_rows]:
            raise DataError(
                f"WorkflowTransformer: {type(changing[0]).__name__} changes the rows, and y would not follow. Do it "
                "before."
            )
        fitted.fit([frame])
        made = fitted.transform_train(frame.head(1), whole_groups=True)
        left_out = {self.label} if reads_label else set()
        wanted = [name for name in made.columns if name not in left_out] if outputs is None else [*outputs]
        self.workflow_ = fitted.serving(wanted)
        self.columns_out_ = wanted
        return fitted, frame

    def transform(self, X: Any) -> pd.DataFrame:
        """Rows after the steps, without the label, on the frame's index."""
        check_is_fitted(self)
        return self.workflow_.transform(read_frame(self, X, reset=False))


def _entries(values: Any) -> list[Any]:
    """Values of labels as Python's own, None for null, to be compared whatever type holds them."""
    column = pd.Series(np.asarray(values).ravel()).astype("object")
    return column.where(column.notna(), None).tolist()
