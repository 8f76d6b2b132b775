"""Requests that cannot be used: 4xx with a JSON error that names the field, whatever was sent."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.pipeline.config.serving import ServeSettings
from gigabatch.pipeline.serving.errors import Refusal
from gigabatch.pipeline.serving.requests import RankRequest, RecommendRequest, ScoreRequest, _refused, parse
from tests.examples import examples

LIMITS = ServeSettings(max_candidates=5, max_k=7, max_exclude=3, max_rows=2, max_text=20, max_list=4)
KINDS = {"/rank": RankRequest, "/recommend": RecommendRequest, "/score": ScoreRequest}


def refusal(kind, body) -> Refusal:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(Refusal) as found:
        parse(kind, content, LIMITS)
    return found.value


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"items": ["\xff\xfe"]}',  # no UTF-8
        b'{"items": ["\\ud800"]}',  # half of a surrogate pair
        b'\xef\xbb\xbf{"items": [1]}',  # a byte order mark
        b'{"items": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"items": [' + b"9" * 10_000 + b"]}",
    ],
)
def test_what_is_no_json_is_400(body):
    found = refusal(RankRequest, body)
    assert (found.status, found.code) == (400, "invalid_json")


@pytest.mark.parametrize(
    ("kind", "body", "where"),
    [
        (RankRequest, [], "body"),
        (RankRequest, {}, "items"),
        (RankRequest, {"items": []}, "items"),
        (RankRequest, {"items": [1] * 6}, "items"),
        (RankRequest, {"items": [1, 1.0]}, "items[1]: an id is text or an integer, found a number with a fraction"),
        (RankRequest, {"items": [None]}, "items[0]: an id is text or an integer, found null"),
        (RankRequest, {"items": [2**63]}, "items[0]: an integer outside of 64 bits"),
        (RankRequest, {"items": ["x", "x" * 21]}, "items[1]: a text of 21 characters"),
        (RecommendRequest, {"user": "a", "k": 3, "exclude": ["b", {}]}, "exclude[1]: an id is text or an integer"),
        (RankRequest, {"items": [1], "user": 1.5}, "user"),
        (RankRequest, {"items": [1], "user": 2**63}, "user"),
        (RankRequest, {"items": [1], "user": "x" * 21}, "user"),
        (RankRequest, {"items": [1], "users": "a"}, "users"),
        (RankRequest, {"items": [1], "user_features": [1]}, "user_features"),
        (RankRequest, {"items": [1], "user_features": {"age": [[1]]}}, "user_features: element 0 of column 'age'"),
        (RankRequest, {"items": [1], "user_features": {"age": {}}}, "user_features: column 'age' is an object"),
        (RankRequest, {"items": [1], "user_features": {"age": [1] * 5}}, "user_features: column 'age' is a list of 5"),
        (RankRequest, {"items": [1], "context": {"age": [1, 2**63]}}, "context: element 1 of column 'age'"),
        (RankRequest, {"items": [1], "context": {"age": ["", "x" * 21]}}, "context: element 1 of column 'age'"),
        (RankRequest, b'{"items": [1], "context": {"age": [1e999]}}', "context: element 0 of column 'age'"),
        (RankRequest, {"items": [1], "context": {"age": -math.inf}}, "context"),
        (RankRequest, b'{"items": [1], "context": {"age": 1e999}}', "context"),
        (RecommendRequest, {"user": "a", "k": 0}, "k"),
        (RecommendRequest, {"user": "a", "k": 8}, "k"),
        (RecommendRequest, {"user": "a", "k": True}, "k"),
        (RecommendRequest, {"user": "a", "k": 3, "exclude": [1, 2, 3, 4]}, "exclude"),
        (ScoreRequest, {"rows": []}, "rows"),
        (ScoreRequest, {"rows": [{}, {}, {}]}, "rows"),
        (ScoreRequest, {"rows": [{"a": 1}, 3]}, "rows[1]"),
        (ScoreRequest, {"rows": [{"a": 1}, {"a": {"b": 1}}]}, "rows[1]"),
    ],
)
def test_what_cannot_be_used_is_422_and_names_the_field(kind, body, where):
    found = refusal(kind, body)
    assert (found.status, found.code) == (422, "invalid_request")
    assert found.fields[0][0] == where.partition(":")[0]
    assert where in json.loads(found.response().body)["message"]


MANY = {
    "numbers for rows": (ScoreRequest, b'{"rows": [' + b"1," * 500_000 + b"1]}"),
    "numbers for rows, as many as are taken": (ScoreRequest, b'{"rows": [1, 1]}'),
    "a row of lists": (ScoreRequest, b'{"rows": [{' + b",".join(b'"%d": [{}]' % i for i in range(80_000)) + b"}]}"),
    "unknown fields": (ScoreRequest, b"{" + b",".join(b'"f%d": 1' % i for i in range(80_000)) + b"}"),
    "lists for items": (RankRequest, b'{"items": [' + b"[]," * 300_000 + b"[]]}"),
    "lists to exclude": (RecommendRequest, b'{"exclude": [' + b"[]," * 300_000 + b"[]]}"),
}


@pytest.mark.parametrize("kind", list(MANY))
def test_a_body_full_of_mistakes_costs_no_more_than_its_parsing(kind, monkeypatch):
    """P6: an error object an item, 435 MiB for 1 MiB of numbers, and 4.6 seconds of the one thread."""
    request, body = MANY[kind]
    made = []
    monkeypatch.setattr(
        "gigabatch.pipeline.serving.requests._refused", lambda text: made.append(text) or _refused(text)
    )
    found = refusal(request, body)
    assert found.status == 422
    assert len(found.fields) <= 10
    assert len(made) <= 1  # one mistake is enough
    assert len(found.response().body) < 4000


def test_a_count_is_looked_at_before_what_is_counted():
    assert refusal(ScoreRequest, {"rows": [1, 2, 3]}).message == "rows: found 3; from 1 to 2 are taken."
    assert refusal(RankRequest, {"items": [None] * 6}).message == "items: found 6; from 1 to 5 are taken."


def test_the_limits_themselves_are_taken():
    assert (
        parse(RankRequest, json.dumps({"items": ["x" * 20] * 5, "user": 2**63 - 1}).encode(), LIMITS).user == 2**63 - 1
    )
    assert parse(RecommendRequest, b'{"user": "a", "k": 7, "exclude": [1, 2, -9223372036854775808]}', LIMITS).k == 7
    values = {"a": None, "b": True, "c": -1.5, "d": "", "e": 2**63 - 1, "f": ["x" * 20, None, 1.5, True], "g": []}
    assert parse(ScoreRequest, json.dumps({"rows": [values, {}]}).encode(), LIMITS).rows == [values, {}]


def test_an_error_is_never_longer_than_some_lines():
    """Whoever sends a great wrong request does not get it back."""
    long = "k" * 500_000
    for body in ({"items": [1], long: 1}, {"items": [1], "context": {long: [[]]}}, {"items": [long]}):
        assert len(refusal(RankRequest, body).response().body) < 2000


@pytest.mark.parametrize(
    ("path", "request_", "field"),
    [
        ("/rank", {"items": [1001]}, "user"),
        ("/rank", {"user": "u1", "items": [1001, "01001"]}, "items[1]"),
        ("/rank", {"user": "u1", "items": [1001], "context": {"hour": 3}}, "context"),
        ("/rank", {"user_features": {"city": "Oslo"}, "items": [1001]}, "user_features"),
        ("/rank", {"user_features": {"city": 1, "age": 2, "visits": 3, "sex": "f"}, "items": [1001]}, "user_features"),
        ("/rank", {"user_features": {"city": "a", "age": "old", "visits": 3}, "items": [1001]}, "user_features"),
        ("/rank", {"user_features": {"city": "a", "age": 1, "visits": None}, "items": [1001]}, "user_features"),
        ("/recommend", {"user": "u1", "exclude": ["a"]}, "exclude[0]"),
        ("/score", {"rows": [{"user_id": "a"}]}, "rows[0]"),
    ],
)
def test_what_does_not_fit_the_bundles_columns_is_422(path, request_, field, caller):
    answer = caller.post(path, request_)
    assert answer.status_code == 422
    assert answer.json()["fields"][0]["field"] == field


def test_a_wrong_row_among_right_ones_is_named(caller, frame):
    row = json.loads(frame.drop(columns="clicked").head(1).to_json(orient="records"))[0]
    answer = caller.post("/score", {"rows": [row, row, row | {"visits": 1.5}]})
    assert answer.json()["fields"][0]["field"] == "rows[2]"
    assert "'visits'" in answer.json()["message"]


@pytest.mark.parametrize(
    "headers",
    [{}, {"content-type": "text/plain"}, {"content-type": "application/json", "content-encoding": "gzip"}],
)
def test_other_types_of_body_are_415(headers, caller):
    answer = caller("POST", "/rank", content=b'{"user": "u1", "items": [1001]}', headers=headers)
    assert (answer.status_code, answer.json()["error"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 404), ("GET", "/rank/", 404), ("DELETE", "/health", 405)],
)
def test_no_such_route_is_json_too(method, path, status, caller):
    answer = caller(method, path)
    assert answer.status_code == status
    assert answer.json().keys() == {"error", "message", "fields"}


any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
field = st.sampled_from(["user", "user_features", "context", "items", "k", "exclude", "rows", "city", "age", "visits"])
likely = st.dictionaries(field, any_json | st.dictionaries(field, any_json, max_size=4), max_size=5)


@settings(max_examples=examples(150))
@given(path=st.sampled_from(sorted(KINDS)), content=likely | any_json | st.binary(max_size=60))
def test_nothing_that_is_sent_breaks_the_service(path, content, caller):
    """Surrogates are what json.dumps makes of them; NaN and infinities are sent as Python writes them."""
    answer = caller.post(path, content)
    assert answer.status_code in (200, 400, 422)
    found = answer.json()
    if answer.status_code != 200:
        assert found.keys() == {"error", "message", "fields"}
        assert found["message"]
    if answer.status_code == 422:
        assert found["fields"]


@pytest.mark.parametrize(
    ("kind", "body", "key"),
    [
        (RankRequest, b'{"items": [1], "items": [2]}', "items"),
        (RankRequest, b'{"items": ["a:b"], "context": {"age" : 1, "\\u0061ge": 2}}', "age"),
        (ScoreRequest, b'{"rows": [{"at": "2024-01-01T10:00:00"}, {"a": 1, "b": 2, "a": 1}]}', "a"),
        (ScoreRequest, b'{"rows": [{"": 1, "": 2}]}', "body"),
        (RankRequest, b'{"items": [1], "context": {' + b", ".join(b'"k%d": 1' % k for k in range(30000))
         + b', "k29999": 2}}', "k29999"),
    ],
)  # fmt: skip
def test_a_key_that_stands_twice_is_refused_by_name(kind, body, key):
    found = refusal(kind, body)
    assert (found.status, found.fields) == (422, ((key, "stands twice in one object; give each key once"),))


def test_one_key_in_several_objects_and_colons_in_text_are_no_key_twice():
    body = b'{"rows": [{"a": "1:2", "b": "x"}, {"a": "\\"a\\": 1", "b": "y"}]}'
    assert [row["a"] for row in parse(ScoreRequest, body, LIMITS).rows] == ["1:2", '"a": 1']
