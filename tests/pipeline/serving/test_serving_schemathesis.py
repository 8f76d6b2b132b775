"""The OpenAPI page holds what the service does: schemathesis sends what the page allows, and what it forbids."""

import warnings

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS

from gigabatch.pipeline.config.serving import ServeSettings
from tests.examples import examples

LIMITS = ServeSettings(max_candidates=20, max_k=50, max_exclude=20, max_rows=5, max_text=40)
ALWAYS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")
REFUSED = {400, 401, 404, 405, 406, 408, 409, 413, 415, 422}


@pytest.fixture(scope="module")
def operations(served, make_caller):
    """path -> the operation, of a service in this process."""
    app = make_caller(served, LIMITS).app
    with warnings.catch_warnings():  # starlette would have a newer client than schemathesis uses
        warnings.simplefilter("ignore")
        schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    return {operation.ok().path: operation.ok() for operation in schema.get_all_operations()}


def send(operation, mode: GenerationMode, examples: int, checks: tuple[str, ...]) -> dict[int, int]:
    """How often each status was answered to so many generated requests that all pass the checks."""
    statuses: dict[int, int] = {}
    chosen = [check for check in CHECKS.get_all() if check.__name__ in checks]
    assert len(chosen) == len(checks)

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(mode))
    def each(case):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            response = case.call()
            case.validate_response(response, checks=chosen)
        statuses[response.status_code] = statuses.get(response.status_code, 0) + 1

    each()
    return statuses


@pytest.mark.parametrize("path", ["/rank", "/recommend", "/score"])
def test_what_the_page_forbids_is_refused(path, operations):
    statuses = send(operations[path], GenerationMode.NEGATIVE, examples(40), (*ALWAYS, "negative_data_rejection"))
    assert statuses.keys() <= REFUSED
    assert sum(statuses.values()) >= examples(40) // 2


@pytest.mark.parametrize("path", ["/rank", "/recommend", "/score", "/health"])
def test_what_the_page_allows_is_answered_or_does_not_fit_the_bundle(path, operations):
    """Ids and columns are the bundle's, which no page can know; what they refuse is 422, and raw rows, which this
    bundle does not take, are 409."""
    statuses = send(operations[path], GenerationMode.POSITIVE, examples(40), ALWAYS)
    assert statuses.keys() <= ({200, 409, 422} if path == "/score" else {200, 422})
