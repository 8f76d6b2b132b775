"""What a table's columns are: `Schema` for the features stage, `TensorSchema` for packed tables.

Both are plain frozen dataclasses that go to and from JSON, so that loaders and bundles need nothing but this file.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from gigabatch.features.errors import UNREADABLE, DataError

Role = Literal["categorical", "continuous", "target", "weight", "group", "time", "key"]
ROLES: tuple[str, ...] = ("categorical", "continuous", "target", "weight", "group", "time", "key")
Task = Literal["binary", "multiclass", "regression"]
TASKS: tuple[str, ...] = ("binary", "multiclass", "regression")
ENTITIES: tuple[str, ...] = ("user", "item")
# Sums of a batch's losses, each times its weight, stay within float32. Only ratios of weights count.
LARGEST_WEIGHT = 2.0**64
BESIDE_SCORES: tuple[str, ...] = ("key", "group", "time")
LIST_ELEMENTS: tuple[str, ...] = ("string", "int64")
# Roles with a word in a packed row.
PACKED: tuple[str, ...] = ("categorical", "continuous", "target", "weight", "group")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**31


def indicator_name(column: str) -> str:
    """Name of the column that says where a continuous column was null."""
    return f"{column}_na"


def require_apart(makers: Iterable[tuple[str, str]], where: str) -> None:
    """Raise `DataError` where two of the pairs (name, what has it) are of one name; it says what the two are."""
    taken = dict[str, str]()
    for name, maker in makers:
        if name in taken:
            raise DataError(f"{where}: {taken[name]} and {maker} have one name, {name!r}. Rename one of them.")
        taken[name] = maker


@dataclass(frozen=True)
class Column:
    """Describe one column of the features stage.

    Parameters
    ----------
    name
        Name of the column.
    role
        `categorical` and `continuous` feed the model; `target` is what it learns; `weight` scales a row's loss;
        `group` gathers rows that are ranked together; `time` orders rows; `key` is carried along for reports and
        scores.
    dtype
        pandas/cuDF name after casting, one of int32, int64, float32, float64, string, bool; or datetime, which is int64
        microseconds since 1970 in UTC.

    Examples
    --------
    >>> from gigabatch.features.schema import Column
    >>> Column("price", "continuous", "float32")
    Column(name='price', role='continuous', dtype='float32')
    """

    name: str
    role: Role
    dtype: str

    def __post_init__(self) -> None:
        if not all(isinstance(value, str) for value in (self.name, self.role, self.dtype)):
            raise DataError(f"schema: name, role and dtype of a column are text, found {self!r}.")


@dataclass(frozen=True)
class Target:
    """Describe one label that the model learns.

    Parameters
    ----------
    name
        Name of the column of role `target`.
    task
        `binary` (float32 labels 0 and 1), `multiclass` (int32 codes) or `regression` (float32 numbers).
    num_outputs
        How many outputs of the model it takes: the number of classes for multiclass, else 1.
    classes
        For multiclass, the names of the codes 0, 1, ... for reports and predictions.
    quantiles
        For regression, which quantiles are predicted in place of one value: rising shares in (0, 1), one an output.
    label_of
        For binary, the multilabel target that it is one of the labels of; empty for a target of its own.

    Raises
    ------
    DataError
        If the task is unknown or the number of outputs fits neither the task nor the classes.

    Examples
    --------
    >>> from gigabatch.features.schema import Target
    >>> Target("kind", "multiclass", num_outputs=3, classes=("egg", "ham", "spam")).num_outputs
    3
    """

    name: str
    task: Task
    num_outputs: int = 1
    classes: tuple[str, ...] = ()
    quantiles: tuple[float, ...] = ()
    label_of: str = ""

    def __post_init__(self) -> None:
        for name in ("classes", "quantiles"):
            object.__setattr__(self, name, tuple(getattr(self, name)))  # JSON brings a list
        if not isinstance(self.name, str) or not _is_count(self.num_outputs):
            raise DataError(f"schema: a target has a name and a whole number of outputs from 1, found {self!r}.")
        if self.classes and len(self.classes) != self.num_outputs:
            raise DataError(f"target {self.name!r}: {self.num_outputs} outputs but {len(self.classes)} class names.")
        twice = sorted({name for name in self.classes if self.classes.count(name) > 1})
        if twice:
            raise DataError(f"target {self.name!r}: class(es) {', '.join(map(repr, twice))} are there twice.")
        if self.task not in TASKS:
            raise DataError(f"target {self.name!r}: unknown task {self.task!r}. Known: {', '.join(TASKS)}.")
        if not isinstance(self.label_of, str) or (self.label_of and self.task != "binary"):
            raise DataError(
                f"target {self.name!r}: label_of names a multilabel target, whose labels are binary; found "
                f"{self.label_of!r} of a {self.task} one."
            )
        if self.quantiles:
            self._check_quantiles()
        elif self.task != "multiclass" and self.num_outputs != 1:
            raise DataError(f"target {self.name!r}: a {self.task} target has one output, not {self.num_outputs}.")

    def _check_quantiles(self) -> None:
        if self.task != "regression":
            raise DataError(f"target {self.name!r}: quantiles are of regression targets, this one is {self.task}.")
        rising = all(isinstance(value, float) and 0 < value < 1 for value in self.quantiles)
        if not rising or list(self.quantiles) != sorted(set(self.quantiles)):
            raise DataError(f"target {self.name!r}: quantiles are rising numbers in (0, 1), found {self.quantiles}.")
        if len(self.quantiles) != self.num_outputs:
            raise DataError(f"target {self.name!r}: {len(self.quantiles)} quantiles but {self.num_outputs} outputs.")

    @property
    def central(self) -> int:
        """Place of the quantile nearest to the median, which stands for the target where one value is asked for."""
        return min(range(len(self.quantiles)), key=lambda place: abs(self.quantiles[place] - 0.5))

    def prediction_names(self) -> tuple[str, ...]:
        """Columns of its predictions: its own name, or `<name>_<class>` for each class, `<name>_q<share>` for each
        quantile."""
        if self.quantiles:
            return tuple(f"{self.name}_q{value:g}" for value in self.quantiles)
        if self.task != "multiclass":
            return (self.name,)
        return tuple(f"{self.name}_{item}" for item in self.classes or range(self.num_outputs))


@dataclass(frozen=True)
class Entity:
    """Name the columns that are about the user of a row, or about its item; those of neither are its context.

    Parameters
    ----------
    name
        `user` or `item`.
    key
        The categorical column that says which one.
    columns
        All its feature columns, the key among them; the same for every row of one user or item, or as of the row's
        time.
    """

    name: str
    key: str
    columns: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))  # JSON brings a list
        if self.name not in ENTITIES:
            raise DataError(f"schema: unknown entity {self.name!r}. Known: {', '.join(ENTITIES)}.")
        if self.key not in self.columns:
            raise DataError(f"schema: the key {self.key!r} of {self.name} is not among its columns {self.columns}.")


@dataclass(frozen=True)
class ListColumn:
    """Describe a column that gives each row a list of any length of categories, possibly none.

    Parameters
    ----------
    name
        Name of the column of lists.
    elements
        Type of the elements: `string` or `int64`.
    shares
        The categorical column, or the list before this one, whose vocabulary the elements take, so that equal values
        have equal ids; None for a vocabulary of its own.
    weights
        The column of lists of numbers (float32) that are the elements' weights, as long as the lists of a row; None for
        none.
    max_length
        Of a longer list the last so many elements that are not null are kept; None for all.

    Raises
    ------
    DataError
        If a name is no text, the type is another, or the length is no whole number from 1.

    Examples
    --------
    >>> from gigabatch.features.schema import ListColumn
    >>> ListColumn("history", shares="item", max_length=50).columns
    ('history',)
    """

    name: str
    elements: str = "string"
    shares: str | None = None
    weights: str | None = None
    max_length: int | None = None

    def __post_init__(self) -> None:
        others = [value for value in (self.shares, self.weights) if value is not None]
        if not all(isinstance(value, str) for value in (self.name, *others)) or not self.name:
            raise DataError(f"schema: name, shares and weights of a list column are text, found {self!r}.")
        if self.elements not in LIST_ELEMENTS:
            raise DataError(
                f"schema: list column {self.name!r} has elements of type {self.elements!r}. Known: "
                f"{', '.join(LIST_ELEMENTS)}."
            )
        if self.max_length is not None and not _is_count(self.max_length):
            raise DataError(
                f"schema: max_length of list column {self.name!r} is a whole number from 1, found {self.max_length!r}."
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a table that it is read from."""
        return (self.name,) if self.weights is None else (self.name, self.weights)

    @property
    def owner(self) -> str:
        """The column whose vocabulary it takes."""
        return self.name if self.shares is None else self.shares

    def dtypes(self) -> dict[str, str]:
        """Types of its columns, as `read_files` takes them."""
        return {self.name: f"list[{self.elements}]"} | ({self.weights: "list[float32]"} if self.weights else {})


@dataclass(frozen=True)
class Schema:
    """Describe a features-stage table: its columns in file order, and what is learnt from them.

    Parameters
    ----------
    columns
        The columns, each name once; at most one each of the roles `weight`, `group` and `time`. A model is given
        `<name>_na` beside a continuous column, so none of the others that it reads may have that name.
    targets
        One entry for each column of role `target`, in the order of the columns.
    entities
        What rows are about, for recommenders; see `Entity`. Lists may be among their columns.
    lists
        Columns that give each row a list of categories; see `ListColumn`. They stand behind `columns` in a table.

    Raises
    ------
    DataError
        If a name is there twice, is that of another column's indicator or of two predictions (a multiclass target's
        name is that of its likeliest class), if targets and entities name columns that are not there, or a list shares
        the vocabulary of no categorical column of its type.

    Examples
    --------
    >>> from gigabatch.features.schema import Column, Schema, Target
    >>> schema = Schema(
    ...     (Column("city", "categorical", "string"), Column("late", "target", "float32")),
    ...     (Target("late", "binary"),),
    ... )
    >>> schema.names("categorical")
    ['city']
    >>> Schema.from_json(schema.to_json()) == schema
    True
    """

    columns: tuple[Column, ...]
    targets: tuple[Target, ...]
    entities: tuple[Entity, ...] = ()
    lists: tuple[ListColumn, ...] = ()

    def __post_init__(self) -> None:
        names = self.table_columns
        if len(set(names)) != len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            places: list[tuple[str, str]] = [(column.name, column.role) for column in self.columns]
            places += [(name, "lists") for column in self.lists for name in column.columns]
            roles = {name: " and ".join(role for other, role in places if other == name) for name in twice}
            shown = ", ".join(f"{name} ({roles[name]})" for name in twice)
            raise DataError(
                f"schema: column(s) {shown} listed twice. A column has one role: take it out of the others, or make a "
                "copy of it in a step."
            )
        for column in self.columns:
            if column.role not in ROLES:
                raise DataError(
                    f"schema: column {column.name!r} has unknown role {column.role!r}. Known: {', '.join(ROLES)}."
                )
        if [target.name for target in self.targets] != self.names("target"):
            raise DataError(
                f"schema: targets {[t.name for t in self.targets]} differ from the columns of role target "
                f"{self.names('target')}."
            )
        for role in ("weight", "group", "time"):
            if len(self.names(role)) > 1:
                raise DataError(f"schema: at most one column of role {role}, found {self.names(role)}.")
        self._check_words()
        self._check_lists()
        self._check_entities()

    def _check_lists(self) -> None:
        """Refuse what no vocabulary can be shared with."""
        owners = {column.name: column.dtype for column in self.columns if column.role == "categorical"}
        for column in self.lists:
            if column.shares is not None and owners.get(column.shares) != column.elements:
                what = f"of type {owners[column.shares]}" if column.shares in owners else "none of these"
                raise DataError(
                    f"schema: list column {column.name!r} of {column.elements} shares the vocabulary of "
                    f"{column.shares!r}, which is {what}. It is a categorical column, or a list with a vocabulary of "
                    f"its own that comes before, of the same type: {', '.join(map(repr, owners)) or 'none'}."
                )
            if column.shares is None:
                owners[column.name] = column.elements

    def _check_words(self) -> None:
        """Refuse two words of a packed row, or two columns of predictions, that would have one name."""
        words = [(item.name, f"the {item.role} column {item.name!r}") for item in self.columns if item.role in PACKED]
        floats = self.names("continuous")
        flags = [(indicator_name(name), f"the indicator of nulls in column {name!r}") for name in floats]
        words += [(item.name, f"the list column {item.name!r}") for item in self.lists]
        require_apart([*words, *flags], "schema")
        kept = [(name, f"the column {name!r} that scores are written beside") for name in self.names(*BESIDE_SCORES)]
        predicted = [
            (name, f"a prediction of target {target.name!r}")
            for target in self.targets
            for name in target.prediction_names()
        ]
        require_apart([*kept, *((f"predicted_{name}", what) for name, what in predicted)], "schema")
        # `Run.predict` gives these beside them.
        likeliest = [
            (target.name, f"the likeliest class of target {target.name!r}")
            for target in self.targets
            if target.task == "multiclass" and target.classes
        ]
        require_apart([*predicted, *likeliest], "schema")

    def _check_entities(self) -> None:
        features, taken = self.names("categorical", "continuous"), dict[str, str]()
        features += [column.name for column in self.lists]
        if len({entity.name for entity in self.entities}) != len(self.entities):
            raise DataError(f"schema: an entity comes twice: {', '.join(entity.name for entity in self.entities)}.")
        for entity in self.entities:
            if entity.key not in self.names("categorical"):
                raise DataError(
                    f"schema: the key {entity.key!r} of {entity.name} is no categorical column. Categorical columns: "
                    f"{', '.join(self.names('categorical')) or 'none'}."
                )
            for name in entity.columns:
                if name not in features:
                    raise DataError(
                        f"schema: {name!r}, a column of {entity.name}, is no feature. Features: {', '.join(features)}."
                    )
                if name in taken:
                    raise DataError(f"schema: {name!r} is a column of {taken[name]} and of {entity.name}.")
                taken[name] = entity.name

    def entity(self, name: str) -> Entity | None:
        """The entity of that name, or None."""
        return next((entity for entity in self.entities if entity.name == name), None)

    def names(self, *roles: str) -> list[str]:
        """Names of the columns of these roles, in order; every column when no role is given."""
        return [column.name for column in self.columns if not roles or column.role in roles]

    def only(self, role: str) -> str | None:
        """The one column of this role, or None."""
        names = self.names(role)
        return names[0] if names else None

    @property
    def table_columns(self) -> list[str]:
        """Every column of the table, in order: `columns`, then those of `lists`."""
        return [*self.names(), *(name for column in self.lists for name in column.columns)]

    def dtypes(self) -> dict[str, str]:
        return {column.name: column.dtype for column in self.columns}

    @property
    def table_dtypes(self) -> dict[str, str]:
        """Type of each of `table_columns`."""
        return self.dtypes() | {name: dtype for column in self.lists for name, dtype in column.dtypes().items()}

    def to_json(self) -> str:
        return json.dumps(_plain(self), indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "Schema":
        def build(raw: Any) -> Schema:
            return cls(
                tuple(Column(**column) for column in raw["columns"]),
                tuple(Target(**target) for target in raw["targets"]),
                tuple(Entity(**entity) for entity in raw.get("entities", ())),
                tuple(ListColumn(**column) for column in raw.get("lists", ())),
            )

        return _read_json(text, build, "schema", "features")

    def save(self, path: Path) -> None:
        Path(path).write_text(self.to_json())

    @classmethod
    def load(cls, path: Path) -> "Schema":
        return cls.from_json(Path(path).read_text())


@dataclass(frozen=True)
class IdColumn:
    """One column of ids: values are in [0, num_ids)."""

    name: str
    num_ids: int

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _is_count(self.num_ids):
            raise DataError(f"tensor schema: a column of ids has a name and their number from 1, found {self!r}.")


@dataclass(frozen=True)
class IdList:
    """One column of lists of ids, values in [0, num_ids); shares: the column of ids, or the list before it, whose
    vocabulary it takes; weighted: whether each id has a float32 weight."""

    name: str
    num_ids: int
    shares: str | None = None
    weighted: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _is_count(self.num_ids) or not isinstance(self.weighted, bool):
            raise DataError(f"tensor schema: a list of ids has a name and their number from 1, found {self!r}.")


@dataclass(frozen=True)
class TensorSchema:
    """What a row of a packed table holds, in this order: ids, floats, targets, weight, group, and of each list the
    number of its row in the column's own arrays (`PackedTable.lists`)."""

    ids: tuple[IdColumn, ...]
    floats: tuple[str, ...]
    targets: tuple[Target, ...]
    has_weight: bool = False
    has_group: bool = False
    lists: tuple[IdList, ...] = ()

    def __post_init__(self) -> None:
        if not all(isinstance(name, str) for name in self.floats):
            raise DataError(f"tensor schema: floats are names of columns, found {self.floats!r}.")
        if not (isinstance(self.has_weight, bool) and isinstance(self.has_group, bool)):
            raise DataError("tensor schema: has_weight and has_group are true or false.")
        names = [(item.name, f"the ids {item.name!r}") for item in self.ids]
        names += [(name, f"the floats {name!r}") for name in self.floats]
        names += [(item.name, f"the lists {item.name!r}") for item in self.lists]
        require_apart([*names, *((item.name, f"the target {item.name!r}") for item in self.targets)], "tensor schema")

    @property
    def num_words(self) -> int:
        """4-byte words in a row."""
        return self.first_list + len(self.lists)

    @property
    def first_list(self) -> int:
        """Place in a row of the word of the first list; those of the others follow."""
        return len(self.ids) + len(self.floats) + len(self.targets) + self.has_weight + self.has_group

    @property
    def group_word(self) -> int:
        """Place in a row of the group; there must be one."""
        assert self.has_group, "the rows have no group"
        return self.first_list - 1

    @property
    def num_outputs(self) -> int:
        """Width of the model's output for these targets."""
        return sum(target.num_outputs for target in self.targets)

    def to_json(self) -> str:
        return json.dumps(_plain(self), indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "TensorSchema":
        def build(raw: Any) -> TensorSchema:
            return cls(
                ids=tuple(IdColumn(**column) for column in raw["ids"]),
                floats=tuple(raw["floats"]),
                targets=tuple(Target(**target) for target in raw["targets"]),
                has_weight=raw["has_weight"],
                has_group=raw["has_group"],
                lists=tuple(IdList(**column) for column in raw.get("lists", ())),
            )

        return _read_json(text, build, "tensor schema", "encode")


def _plain(schema: "Schema | TensorSchema") -> dict[str, Any]:
    """The schema as JSON types, as it was written before there were quantiles, labels and lists where it has none."""
    raw = asdict(schema)
    for target in raw["targets"]:
        for name in ("quantiles", "label_of"):
            if not target[name]:
                del target[name]
    if not schema.lists:
        del raw["lists"]
    return raw


def _read_json(text: str, build: Callable[[Any], Any], name: str, stage: str) -> Any:
    try:
        return build(json.loads(text))
    except DataError:
        raise
    except UNREADABLE as error:
        raise DataError(f"{name} is damaged: {error}. Run the {stage} stage again.") from error
