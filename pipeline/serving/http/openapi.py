"""What the OpenAPI page says of the routes: schemas with the service's limits, examples, and the errors."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from pydantic import BaseModel, Field

from gigabatch.pipeline.config.serving import ServeSettings
from gigabatch.pipeline.serving.requests import RankRequest, RecommendRequest, Request, ScoreRequest

IdAnswer = str | int


class WrongField(BaseModel):
    """One field of a request that cannot be used."""

    field: str
    message: str


class ErrorAnswer(BaseModel):
    """Every answer that is an error."""

    error: str = Field(description="a word for programs, such as invalid_request or busy")
    message: str = Field(description="a sentence for people")
    fields: list[WrongField]


class RankAnswer(BaseModel):
    """Scores in the order asked; null for the unknown items, which are listed."""

    bundle: str
    user_known: bool
    scores: list[float | None]
    unknown_items: list[IdAnswer]


class RecommendAnswer(BaseModel):
    """Items, best first, and their scores."""

    bundle: str
    user_known: bool
    items: list[IdAnswer]
    scores: list[float | None]


class ScoreAnswer(BaseModel):
    """A list of numbers, one a row, for each column of predictions."""

    bundle: str
    predictions: dict[str, list[float | None]]


CODES: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorAnswer, "description": "The body is not JSON."},
    401: {"model": ErrorAnswer, "description": "The token is missing or wrong."},
    408: {"model": ErrorAnswer, "description": "The body did not arrive in time."},
    409: {"model": ErrorAnswer, "description": "The loaded bundle cannot do this."},
    413: {"model": ErrorAnswer, "description": "The body is too long."},
    415: {"model": ErrorAnswer, "description": "The body is not declared to be JSON."},
    422: {"model": ErrorAnswer, "description": "A field cannot be used; `fields` says which and why."},
    503: {"model": ErrorAnswer, "description": "No room, or no bundle, now; try again after Retry-After seconds."},
}
ANSWERS: dict[type[Request], type[BaseModel]] = {
    RankRequest: RankAnswer, RecommendRequest: RecommendAnswer, ScoreRequest: ScoreAnswer
}  # fmt: skip
EXAMPLES: dict[type[Request], dict[str, Any]] = {
    RankRequest: {
        "by id": {"value": {"user": "u17", "items": ["i3", "i8", "i1"]}},
        "described": {"value": {"user_features": {"age": 31, "city": "Rome"}, "items": ["i3", "i8"]}},
    },
    RecommendRequest: {"by id": {"value": {"user": "u17", "k": 5, "exclude": ["i3"]}}},
    ScoreRequest: {
        "two rows": {"value": {"rows": [{"carrier": "UA", "distance": 1400.0}, {"carrier": None, "distance": 200.0}]}},
        "raw rows": {
            "value": {"rows": [{"ordered": "2026-11-24T08:30:00", "city": " Oslo", "price": "$27.62"}], "raw": True}
        },
        "with a list": {"value": {"rows": [{"price": 4.5, "tags": ["new", "red"], "tag_weights": [1.0, 0.5]}]}},
    },
}


def route_docs(kind: type[Request], settings: ServeSettings) -> dict[str, Any]:
    """Arguments of FastAPI's route decorator: the request's schema, the answer's and the errors'."""
    content = {"application/json": {"schema": request_schema(kind, settings), "examples": EXAMPLES[kind]}}
    return {
        "responses": {200: {"model": ANSWERS[kind], "description": "The answer."}, **CODES},
        "openapi_extra": {"requestBody": {"required": True, "content": content}},
    }


def request_schema(kind: type[Request], settings: ServeSettings) -> dict[str, Any]:
    """JSON schema of a request with the limits of `settings`."""
    schema = deepcopy(kind.model_json_schema())  # parts of it are those of requests.py, which all settings share
    properties = schema["properties"]
    bounds = {
        "items": {"minItems": 1, "maxItems": settings.max_candidates},
        "exclude": {"maxItems": settings.max_exclude},
        "rows": {"minItems": 1, "maxItems": settings.max_rows},
        "k": {"maximum": settings.max_k},
    }
    for name, bound in bounds.items():
        if name in properties:
            properties[name] |= bound
    _bound(schema, settings)
    return schema


def _bound(schema: Any, settings: ServeSettings) -> None:
    """Say in every schema of a text, at any depth, how long it may be, and so of lists that say nothing yet: those
    among a row's values."""
    if isinstance(schema, dict):
        if schema.get("type") == "string":
            schema["maxLength"] = settings.max_text
        if schema.get("type") == "array":
            schema.setdefault("maxItems", settings.max_list)
        for part in schema.values():
            _bound(part, settings)
    elif isinstance(schema, list):
        for part in schema:
            _bound(part, settings)
