"""What the routes take: strict JSON, checked before anything is computed. Limits come with each check.

A list's length is looked at before its items, which are checked in one pass that ends at the first that is wrong: a
validator for each would take longer than the model, and an error for each wrong one more time and memory than the body.
"""

from __future__ import annotations

import json
import math
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, WithJsonSchema
from pydantic_core import PydanticCustomError, from_json

from gigabatch.pipeline.config.serving import ServeSettings
from gigabatch.pipeline.serving.errors import Refusal

INT64 = 2**63
MOST_ERRORS = 10

COUNTED = {  # field: the least, and the setting that says the most
    "items": (1, "max_candidates"), "exclude": (0, "max_exclude"), "rows": (1, "max_rows"), "k": (1, "max_k")
}  # fmt: skip

ID_SCHEMA = {"anyOf": [{"type": "string"}, {"type": "integer", "minimum": -INT64, "maximum": INT64 - 1}]}
VALUE_SCHEMA = {"anyOf": [*ID_SCHEMA["anyOf"], {"type": "number"}, {"type": "boolean"}, {"type": "null"}]}
LIST_SCHEMA = {"type": "array", "items": VALUE_SCHEMA}
VALUES_SCHEMA = {"type": "object", "additionalProperties": {"anyOf": [*VALUE_SCHEMA["anyOf"], LIST_SCHEMA]}}


def _refused(message: str) -> PydanticCustomError:
    return PydanticCustomError("gigabatch", "{message}", {"message": message})


def _limits(info: ValidationInfo) -> ServeSettings:
    return info.context or ServeSettings()


def _require_id(value: Any, limits: ServeSettings, where: str = "") -> None:
    if type(value) is str:
        if len(value) > limits.max_text:
            raise _refused(f"{where}a text of {len(value):,} characters; at most {limits.max_text:,} are taken")
    elif type(value) is not int:
        raise _refused(f"{where}an id is text or an integer, found {_kind(value)}")
    elif not -INT64 <= value < INT64:
        raise _refused(f"{where}an integer outside of 64 bits")


def _id(value: Any, info: ValidationInfo) -> Any:
    if value is not None:
        _require_id(value, _limits(info))
    return value


def _require_count(found: int, info: ValidationInfo) -> None:
    least, setting = COUNTED[info.field_name or ""]
    most = getattr(_limits(info), setting)
    if not least <= found <= most:
        raise _refused(f"found {found:,}; from {least} to {most:,} are taken.")


def _ids(values: list[Any], info: ValidationInfo) -> list[Any]:
    _require_count(len(values), info)
    limits = _limits(info)
    for place, value in enumerate(values):
        if type(value) is not str or len(value) > limits.max_text:
            try:
                _require_id(value, limits)
            except PydanticCustomError as error:
                raise Refusal.invalid(f"{info.field_name}[{place}]", error.message()) from None
    return values


def _values(values: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
    limits = _limits(info)
    for name, value in values.items():
        if type(value) is list:
            if len(value) > limits.max_list:
                raise _refused(
                    f"column {_short(name)} is a list of {len(value):,} elements; at most {limits.max_list:,} are taken"
                )
            for place, element in enumerate(value):
                if type(element) is not str or len(element) > limits.max_text:
                    _require_value(element, limits, name, place)
        elif type(value) is not str or len(value) > limits.max_text:
            _require_value(value, limits, name)
    return values


def _require_value(value: Any, limits: ServeSettings, name: str, place: int | None = None) -> None:
    """Refuse what is no text, number, true, false or null. name, place: of the column, and of an element of its list;
    put into words for a refusal alone."""
    kind = type(value)
    if kind is float:
        if not math.isfinite(value):
            raise _refused(f"{_column(name, place)} is not a finite number")
    elif kind is int and -INT64 <= value < INT64:
        return
    elif kind is str or kind is int:
        _require_id(value, limits, f"{_column(name, place)} is ")
    elif kind is not bool and value is not None:
        taken = "text, numbers, true, false and null are taken"
        raise _refused(f"{_column(name, place)} is {_kind(value)}; {taken}{', and lists of them' * (place is None)}")


def _column(name: str, place: int | None) -> str:
    return f"column {_short(name)}" if place is None else f"element {place} of column {_short(name)}"


def _rows(rows: list[Any], info: ValidationInfo) -> list[Any]:
    _require_count(len(rows), info)
    for place, row in enumerate(rows):
        if type(row) is not dict:
            raise Refusal.invalid(f"rows[{place}]", f"{_kind(row)}, not an object of column names and values")
        try:
            _values(row, info)
        except PydanticCustomError as error:
            raise Refusal.invalid(f"rows[{place}]", error.message()) from None
    return rows


def _k(value: int, info: ValidationInfo) -> int:
    _require_count(value, info)
    return value


def _short(name: str) -> str:
    return repr(name if len(name) <= 60 else name[:60] + "…")


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", bool: "true or false", float: "a number with a fraction"}
    return "null" if value is None else names.get(type(value), type(value).__name__)


Id = Annotated[Any, AfterValidator(_id), WithJsonSchema(ID_SCHEMA)]
Ids = Annotated[list[Any], AfterValidator(_ids), WithJsonSchema({"type": "array", "items": ID_SCHEMA})]
Values = Annotated[dict[str, Any], AfterValidator(_values), WithJsonSchema(VALUES_SCHEMA)]
Rows = Annotated[list[Any], AfterValidator(_rows), WithJsonSchema({"type": "array", "items": VALUES_SCHEMA})]


class Request(BaseModel):
    """Base of the requests: no unknown fields, no type for another."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class UserRequest(Request):
    """Who asks, and in which circumstances."""

    user: Id = Field(
        None, description='id of the user; 5 is "5" where ids are text, and "5" is 5 where they are integers'
    )
    user_features: Values | None = Field(
        None, description="the user's columns, all but the key, in place of stored ones"
    )
    context: Values | None = Field(None, description="the columns that are of neither user nor item")


class RankRequest(UserRequest):
    """POST /rank."""

    items: Ids = Field(description="ids of the candidates, scored in this order")


class RecommendRequest(UserRequest):
    """POST /recommend."""

    k: Annotated[int, AfterValidator(_k)] = Field(10, description="how many items")
    exclude: Ids = Field(default_factory=list, description="ids of items that are not to be recommended")


class ScoreRequest(Request):
    """POST /score."""

    rows: Rows = Field(
        description="raw rows, as they stand in files, with every column that the bundle's steps read; or rows of the "
        "features stage, with every feature column and no other: column name to value"
    )
    raw: bool | None = Field(
        None,
        description="whether the rows are raw ones; by default their columns tell, and those that may be either are "
        "refused",
    )


R = TypeVar("R", bound=Request)


def parse(kind: type[R], body: bytes, limits: ServeSettings) -> R:
    """The checked request; `Refusal` 400 for what is not JSON, 422 for what cannot be used, with the fields."""
    try:
        raw = from_json(body)
    except ValueError as error:
        raise Refusal(400, "invalid_json", f"Invalid JSON: {error}") from None
    # Each member has a colon, so that as many colons as members are proof enough.
    if body.count(b":") > _num_members(raw):
        _require_distinct_keys(body)
    if isinstance(raw, dict) and (unknown := [name for name in raw if name not in kind.model_fields]):
        known = ", ".join(kind.model_fields)
        shown = [(_path((name,)), f"is no field of this request. Fields: {known}") for name in unknown[:MOST_ERRORS]]
        raise _refusal(shown)
    try:
        return kind.model_validate(raw, context=limits)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)
        raise _refusal([(_path(item["loc"]), item["msg"]) for item in found]) from None


def _num_members(value: Any) -> int:
    if type(value) is dict:
        return len(value) + sum(map(_num_members, value.values()))
    return sum(map(_num_members, value)) if type(value) is list and value and type(value[0]) in (dict, list) else 0


def _require_distinct_keys(body: bytes) -> None:
    """`Refusal` 422 for an object that holds a key twice, of which readers of JSON would take the last."""

    def members(pairs: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _refusal([(_path((key,)), "stands twice in one object; give each key once")])
            seen.add(key)

    json.loads(body.decode(), object_pairs_hook=members, parse_int=str, parse_float=str)


def _refusal(fields: list[tuple[str, str]]) -> Refusal:
    message = "; ".join(f"{field}: {text}" for field, text in fields)
    return Refusal(422, "invalid_request", message, fields)


def _path(location: tuple[int | str, ...]) -> str:
    parts = [f"[{part}]" if isinstance(part, int) else f".{part[:60]}" for part in location]
    return "".join(parts).removeprefix(".") or "body"
