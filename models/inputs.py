"""What the data ask of a model: sizes of its columns, and which of them describe a user or an item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from typing import Any

from gigabatch.models.errors import ModelError, require, require_known


@dataclass(frozen=True)
class EntityColumns:
    """Which columns describe a user, or an item: places among the ids, among the floats and among the lists.

    key: place among the ids of the column that names it; one of `ids`. first: ids of that column below it are none that
    is known, such as null and unseen; 0 where nobody has told.
    """

    key: int
    ids: tuple[int, ...]
    floats: tuple[int, ...] = ()
    first: int = 0
    lists: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for field in ("ids", "floats", "lists"):  # JSON knows only lists
            object.__setattr__(self, field, tuple(getattr(self, field)))
        require(self.key in self.ids, f"the key column {self.key} of an entity is not among its id columns {self.ids}.")


@dataclass(frozen=True)
class ListInputs:
    """A column of lists of ids.

    Parameters
    ----------
    num_ids : int
        Size of its vocabulary.
    shares : int or None, default None
        Whose table it uses, since both have one vocabulary: the place of an id column, or C + l for list l before it
        where there are C id columns. None for a table of its own.
    weighted : bool, default False
        Whether a float32 comes with each id.
    """

    num_ids: int
    shares: int | None = None
    weighted: bool = False


@dataclass(frozen=True)
class ModelInputs:
    """What the data ask of a model; a model's own settings say the rest.

    Parameters
    ----------
    num_ids : tuple of int
        Size of each id column's table.
    num_floats : int
        Float columns.
    num_outputs : int, default 1
        Width of the output.
    user, item : EntityColumns or None, default None
        The columns of either, where the schema names them; all others are context.
    targets : tuple of (str, int), default ()
        Task (binary, multiclass or regression) and number of outputs of each target, in the order of the outputs; ()
        where nobody has told.
    float_edges : tuple of tuple of float, default ()
        Of each float column the ascending edges of its bins, as the model is given floats; an empty tuple for a column
        without any. () where no column has some.
    lists : tuple of ListInputs, default ()
        The columns of lists.
    float_names : tuple of str, default ()
        Of each float column its name, by which settings speak of it; () where nobody has told.

    Raises
    ------
    ModelError
        For a size below 1, no column at all, an entity's column that is not there, targets of another number of
        outputs, or names of another number of float columns.

    Examples
    --------
    >>> from gigabatch import ModelInputs
    >>> from gigabatch.models.inputs import EntityColumns
    >>> inputs = ModelInputs(num_ids=(100, 7), num_floats=2, user=EntityColumns(key=0, ids=(0,), floats=(1,)))
    >>> inputs.context_ids, inputs.context_floats
    ((1,), (0,))
    """

    num_ids: tuple[int, ...]
    num_floats: int
    num_outputs: int = 1
    user: EntityColumns | None = None
    item: EntityColumns | None = None
    targets: tuple[tuple[str, int], ...] = ()
    float_edges: tuple[tuple[float, ...], ...] = ()
    lists: tuple[ListInputs, ...] = ()
    float_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_ids", tuple(self.num_ids))
        object.__setattr__(self, "targets", tuple((str(task), int(size)) for task, size in self.targets))
        require(all(size >= 1 for size in self.num_ids), f"every id column needs an id: num_ids is {self.num_ids}.")
        require(self.num_floats >= 0, f"num_floats must not be negative: {self.num_floats}.")
        require(self.num_outputs >= 1, f"num_outputs must be at least 1, not {self.num_outputs}.")
        given = bool(self.num_ids) or self.num_floats > 0 or bool(self.lists)
        require(given, "num_ids is empty, num_floats is 0 and there are no lists: no inputs are left.")
        self._check_lists()
        total = sum(size for _, size in self.targets)
        require(
            not self.targets or total == self.num_outputs,
            f"targets {self.targets} have {total} outputs, and num_outputs is {self.num_outputs}.",
        )
        object.__setattr__(self, "float_edges", tuple(map(tuple, self.float_edges)))
        require(
            len(self.float_edges) in (0, self.num_floats)
            and all(len(edges) != 1 and all(a < b for a, b in pairwise(edges)) for edges in self.float_edges),
            f"float_edges must be of all {self.num_floats} float columns: none, or two and more that ascend.",
        )
        object.__setattr__(self, "float_names", tuple(self.float_names))
        require(
            len(self.float_names) in (0, self.num_floats) and len({*self.float_names}) == len(self.float_names),
            f"float_names must be {self.num_floats} different names, or none, not {self.float_names}.",
        )
        for name, entity in (("user", self.user), ("item", self.item)):
            if entity is not None:
                inside = all(0 <= place < len(self.num_ids) for place in entity.ids)
                inside = inside and all(0 <= place < self.num_floats for place in entity.floats)
                inside = inside and all(0 <= place < len(self.lists) for place in entity.lists)
                require(
                    inside,
                    f"{name}: {entity} lies outside {len(self.num_ids)} ids, {self.num_floats} floats and "
                    f"{len(self.lists)} lists.",
                )

    def _check_lists(self) -> None:
        lists = (ListInputs(**item) if isinstance(item, Mapping) else item for item in self.lists)  # as JSON has them
        object.__setattr__(self, "lists", tuple(lists))
        sizes = [*self.num_ids, *(item.num_ids for item in self.lists)]
        for place, item in enumerate(self.lists):
            require(item.num_ids >= 1, f"list {place}: a vocabulary has at least one id, not {item.num_ids}.")
            if item.shares is None:
                continue
            before = len(self.num_ids) + place
            require(
                0 <= item.shares < before and sizes[item.shares] == item.num_ids,
                f"list {place}: it shares the vocabulary of column {item.shares}, which is none of the {before} before "
                f"it, or has another size than its {item.num_ids} ids.",
            )

    @property
    def table_sizes(self) -> tuple[int, ...]:
        """Rows of the tables that the columns need: of each id column, then of each list that shares none."""
        return (*self.num_ids, *(item.num_ids for item in self.lists if item.shares is None))

    def resized(self, sizes: Sequence[int]) -> ModelInputs:
        """These inputs with tables of such sizes, as many as `table_sizes` has.

        Examples
        --------
        >>> from gigabatch.models.inputs import ListInputs, ModelInputs
        >>> inputs = ModelInputs((9,), 0, lists=(ListInputs(9, shares=0), ListInputs(5)))
        >>> [column.num_ids for column in inputs.resized((90, 50)).lists]
        [90, 50]
        """
        num_ids, own = tuple(sizes[: len(self.num_ids)]), iter(sizes[len(self.num_ids) :])
        found = list(num_ids)
        for column in self.lists:
            found.append(next(own) if column.shares is None else found[column.shares])
        lists = [replace(item, num_ids=size) for item, size in zip(self.lists, found[len(num_ids) :], strict=True)]
        return replace(self, num_ids=num_ids, lists=tuple(lists))

    def shared_column(self, place: int) -> int | None:
        """The id column whose vocabulary the list at `place` has, be it through another list; None of its own one."""
        shares = self.lists[place].shares
        while shares is not None and shares >= len(self.num_ids):
            shares = self.lists[shares - len(self.num_ids)].shares
        return shares

    def entity(self, name: str) -> EntityColumns:
        """The columns of `user` or `item`; `ModelError` where the schema names none."""
        columns: EntityColumns | None = getattr(self, name)
        if columns is None:
            raise ModelError(
                f"this model needs to know which columns are those of {name}. Name them in the recipe's settings "
                "(features.entities), or choose another model."
            )
        return columns

    @property
    def context_ids(self) -> tuple[int, ...]:
        """Places of the id columns of neither user nor item."""
        taken = {place for entity in (self.user, self.item) if entity for place in entity.ids}
        return tuple(place for place in range(len(self.num_ids)) if place not in taken)

    @property
    def context_floats(self) -> tuple[int, ...]:
        """Places of the float columns of neither user nor item."""
        taken = {place for entity in (self.user, self.item) if entity for place in entity.floats}
        return tuple(place for place in range(self.num_floats) if place not in taken)

    @property
    def context_lists(self) -> tuple[int, ...]:
        """Places of the lists of neither user nor item."""
        taken = {place for entity in (self.user, self.item) if entity for place in entity.lists}
        return tuple(place for place in range(len(self.lists)) if place not in taken)

    def without_lists(self) -> ModelInputs:
        """These inputs for a model that takes no lists; itself where there are none."""
        if not self.lists:
            return self
        user, item = (entity and replace(entity, lists=()) for entity in (self.user, self.item))
        return replace(self, user=user, item=item, lists=())

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, tuples and None, ready for JSON; without what there was not yet, where it is empty."""
        later = ("targets", "float_edges", "lists", "float_names")
        found = {name: value for name, value in asdict(self).items() if name not in later or value}
        for name in ("user", "item"):
            for added in ("first", "lists"):
                if found[name] is not None and not found[name][added]:
                    del found[name][added]
        return found

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> ModelInputs:
        """What `to_dict` gave; unknown and missing keys are a `ModelError`."""
        known = [field.name for field in fields(cls)]
        require_known("key of a model's inputs", raw, known)
        missing = [key for key in ("num_ids", "num_floats") if key not in raw]
        require(not missing, f"a model's inputs lack {', '.join(missing)}.")
        entities = {key: EntityColumns(**raw[key]) for key in ("user", "item") if raw.get(key) is not None}
        return cls(**{**raw, **entities})
