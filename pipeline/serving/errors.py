"""What the service refuses: at its start (`ServingError`), and a request (`Refusal`, answered as JSON)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gigabatch.pipeline.store.files import json_text

if TYPE_CHECKING:
    from starlette.responses import Response


class ServingError(ValueError):
    """The service cannot start, or a bundle cannot be served; the message says why and what to do."""


class Refusal(Exception):
    """A request that is answered by an error. code: a word for programs; fields: (field, message) of what is wrong."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        fields: Sequence[tuple[str, str]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.fields, self.headers = tuple(fields), dict(headers or {})

    @classmethod
    def invalid(cls, field: str, message: str) -> Refusal:
        """422: one field cannot be used."""
        return cls(422, "invalid_request", f"{field}: {message}", [(field, message)])

    @classmethod
    def busy(cls, message: str) -> Refusal:
        """503: there is no room now."""
        return cls(503, "busy", message, headers={"retry-after": "1"})

    def response(self) -> Response:
        """The answer, in JSON."""
        from starlette.responses import Response  # of the extra serve; a refusal to start needs none of it

        fields = [{"field": field, "message": message} for field, message in self.fields]
        body = {"error": self.code, "message": self.message, "fields": fields}
        return Response(json_text(body), self.status, self.headers, "application/json")
