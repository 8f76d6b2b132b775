"""The routes: /rank, /recommend, /score, /health, /metrics, and the OpenAPI page of them.

FastAPI documents all routes and routes all but the three that compute: those are looked up by their path, bodies are
validated by `requests.parse` and answered as ready JSON bytes, because its own way of doing each takes longer than the
model. Bodies are parsed at their turn in the line: a large one takes as long as some answers do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gigabatch.pipeline.config.serving import ServeSettings
from gigabatch.pipeline.serving.errors import Refusal
from gigabatch.pipeline.serving.http.docs_page import add_docs_page
from gigabatch.pipeline.serving.http.gate import Gate, Line, read_body
from gigabatch.pipeline.serving.http.openapi import CODES, route_docs
from gigabatch.pipeline.serving.metrics import Metrics
from gigabatch.pipeline.serving.requests import RankRequest, RecommendRequest, ScoreRequest, parse
from gigabatch.pipeline.serving.served import ServedBundle
from gigabatch.pipeline.serving.swap import Slot
from gigabatch.pipeline.store.files import json_text

JSON = "application/json"


def create_app(slot: Slot, settings: ServeSettings, metrics: Metrics, token: str | None = None) -> Gate:
    """The service as an ASGI application that answers with the bundle in `slot`. token: what requests must bear."""
    app = FastAPI(
        title="gigabatch", summary="Predictions of a trained bundle.", docs_url=None, redoc_url=None,
        openapi_url=None, redirect_slashes=False,
    )  # fmt: skip
    line = Line(settings.queue, settings.timeout_seconds)

    async def routed(scope: Scope, receive: Receive, send: Send) -> None:
        direct = computing.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if direct is None:
            await app(scope, receive, send)
        else:
            answer = await direct(Request(scope, receive))
            await answer(scope, receive, send)

    gate = Gate(routed, settings, metrics, token, line)

    def served() -> ServedBundle:
        if slot.served is None:
            raise Refusal(503, "no_bundle", "no bundle is loaded yet.", headers={"retry-after": "1"})
        return slot.served

    async def worked(work: Callable[[], dict[str, Any]]) -> Response:
        found = await line.run(lambda: to_json(work(), inf_nan_mode="null"))
        return Response(found, media_type=JSON)

    @app.post("/rank", **route_docs(RankRequest, settings))
    async def rank(request: Request) -> Response:
        """Scores of candidate items for a user, in the order asked."""
        body = await read_body(request, settings)

        def work() -> dict[str, Any]:
            asked = parse(RankRequest, body, settings)
            answering = served()
            ranker = answering.require_ranker()
            asker = ranker.asker(asked)
            scores, unknown = ranker.score(asker, asked.items)
            return {
                "bundle": answering.bundle_id, "user_known": asker.row is not None, "scores": scores,
                "unknown_items": unknown,
            }  # fmt: skip

        return await worked(work)

    @app.post("/recommend", **route_docs(RecommendRequest, settings))
    async def recommend(request: Request) -> Response:
        """The items of the catalogue that score best for a user, best first."""
        body = await read_body(request, settings)

        def work() -> dict[str, Any]:
            asked = parse(RecommendRequest, body, settings)
            answering = served()
            ranker = answering.require_ranker()
            asker = ranker.asker(asked)
            items, scores = ranker.recommend(asker, asked.k, asked.exclude, settings.overfetch)
            return {
                "bundle": answering.bundle_id, "user_known": asker.row is not None, "items": items, "scores": scores
            }  # fmt: skip

        return await worked(work)

    @app.post("/score", **route_docs(ScoreRequest, settings))
    async def score(request: Request) -> Response:
        """Predictions for rows: raw ones, or those of the features stage."""
        body = await read_body(request, settings)

        def work() -> dict[str, Any]:
            asked = parse(ScoreRequest, body, settings)
            answering = served()
            return {"bundle": answering.bundle_id, "predictions": answering.scorer(asked.rows, asked.raw)}

        return await worked(work)

    computing = {"/rank": rank, "/recommend": recommend, "/score": score}

    @app.get("/health", responses={200: {"description": "A bundle answers."}, 503: CODES[503]})
    async def health() -> Response:
        """Whether a bundle answers, in all workers, which, and since when."""
        answering = served()
        ready = metrics.num_answering()
        if ready < settings.workers:
            raise Refusal(
                503, "not_ready", f"{ready} of {settings.workers} workers answer.", headers={"retry-after": "1"}
            )
        ranker = answering.ranker
        found = {
            "status": "ok",
            "bundle": answering.bundle_id,
            "model": answering.kind,
            "created_utc": answering.created_utc,
            "age_seconds": round(time.time() - answering.loaded_at, 3),
            "refused": None if slot.refused is None else slot.refused.told(),
            "can_rank": ranker is not None,
            "can_recommend": answering.can_recommend,
            "why_not": answering.obstacle or None,
            "positive": answering.bundle.positive,
            "equals_batch_scores": ranker is None or ranker.exact,
            "threads": settings.threads,
            "workers": settings.workers,
        }
        return Response(json_text(found), media_type=JSON)

    @app.get("/metrics", responses={200: {"description": "Prometheus' text format.", "content": {"text/plain": {}}}})
    async def prometheus() -> Response:
        """Counts and times."""
        if slot.served is not None:
            metrics.age = time.time() - slot.served.loaded_at
        metrics.behind = slot.refused is not None
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        return Response(json_text(app.openapi()), media_type=JSON)

    add_docs_page(app)

    @app.exception_handler(Refusal)
    async def refused(_: Request, refusal: Refusal) -> Response:
        return refusal.response()

    @app.exception_handler(Exception)
    async def failed(_: Request, error: Exception) -> Response:
        return Refusal(500, "internal_error", "the service failed; its log says why.").response()

    @app.exception_handler(HTTPException)
    async def no_route(_: Request, error: HTTPException) -> Response:
        words = {404: "not_found", 405: "method_not_allowed"}
        code = words.get(error.status_code, "refused")
        return Refusal(error.status_code, code, f"{error.detail}.", headers=error.headers).response()

    return gate
