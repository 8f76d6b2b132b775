"""The page at /docs: Swagger UI over /openapi.json, its script and style from this service and from nowhere else.

They lie in the package `fastapi-offline`, whose Swagger UI 5 reads the OpenAPI 3.1 that FastAPI writes (4 does not).
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import Response

from gigabatch.pipeline.serving.errors import Refusal

PACKAGE = "fastapi_offline"
SCRIPT, STYLE = "swagger-ui-bundle.js", "swagger-ui.css"
TYPES = {SCRIPT: "text/javascript; charset=utf-8", STYLE: "text/css; charset=utf-8"}
# What a browser may load for the page: should a later Swagger UI ask for anything elsewhere, it is not fetched.
# Swagger UI draws its pictures from data: addresses, and sets styles of its own inline as the page does its script.
POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def add_docs_page(app: FastAPI) -> None:
    """Routes for /docs and the files it needs, which are read here, once. None of them is part of the schema.

    Without the package /docs answers 404 and says what to install; the service needs it for nothing else.
    """
    files = read_files()
    page = page_html({name: hashlib.blake2b(content, digest_size=8).hexdigest() for name, content in files.items()})

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        if not files:
            needs = "the page needs the package fastapi-offline, which is not installed: pip install fastapi-offline."
            raise Refusal(404, "not_found", f"{needs} What it would show is at /openapi.json.")
        headers = {"cache-control": "no-cache", "content-security-policy": POLICY}
        return Response(page, media_type="text/html; charset=utf-8", headers=headers)

    for name, content in files.items():  # a fixed route each, so that no path leads to any other file
        app.add_api_route(f"/docs/{name}", file_answer(name, content), methods=["GET"], include_in_schema=False)


def file_answer(name: str, content: bytes) -> Callable[[], Awaitable[Response]]:
    """What answers for one file. It is kept for good, as the page's addresses name the contents, and by the browser
    alone, as a token may guard it."""
    headers = {"cache-control": "private, max-age=31536000, immutable", "x-content-type-options": "nosniff"}

    async def answer() -> Response:
        return Response(content, media_type=TYPES[name], headers=headers)

    return answer


def read_files() -> dict[str, bytes]:
    """Contents of the script and the style by name; empty where the package is not installed or lacks one."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return {}
    folder = Path(spec.submodule_search_locations[0]) / "static"
    if not all((folder / name).is_file() for name in TYPES):
        return {}
    return {name: (folder / name).read_bytes() for name in TYPES}


def page_html(versions: Mapping[str, str]) -> bytes:
    """The page, with relative addresses, so that a proxy may put a prefix before them. versions: of each file."""
    addresses = {name: f"docs/{name}?{versions.get(name, '')}" for name in TYPES}
    page = get_swagger_ui_html(
        openapi_url="openapi.json",
        title="gigabatch",
        swagger_js_url=addresses[SCRIPT],
        swagger_css_url=addresses[STYLE],
        swagger_favicon_url="data:,",  # none, and the browser does not go looking for one
        swagger_ui_parameters={"validatorUrl": None},  # or the document's address would go to validator.swagger.io
    )
    return bytes(page.body)
