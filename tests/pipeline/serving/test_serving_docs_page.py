"""The page at /docs: nothing on it comes from another host, and what it asks for is answered."""

import importlib.util
from html.parser import HTMLParser
from types import SimpleNamespace
from urllib.parse import urljoin, urlsplit

import pytest

from gigabatch.pipeline.serving.http import docs_page

OWN = "http://served/docs"
installed = pytest.mark.skipif(
    importlib.util.find_spec("fastapi_offline") is None, reason="fastapi-offline is not installed: make setup"
)


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A stand-in for the package: the two files, and one that nobody asks for."""
    content = {"swagger-ui-bundle.js": b"let script = 1;", "swagger-ui.css": b"body { color: red }"}
    (tmp_path / "static").mkdir()
    for name, text in (content | {"redoc.standalone.js": b"let other = 1;"}).items():
        (tmp_path / "static" / name).write_bytes(text)
    found = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(docs_page.importlib.util, "find_spec", lambda name: found)
    return content


class Addresses(HTMLParser):
    """Every address in a page's tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found += [value for name, value in attrs if name in ("src", "href", "action", "data", "content") and value]


def require_own(page: str, caller) -> list[str]:
    """The page's files, all answered by the service itself."""
    assert "//" not in page.replace("<!-- `SwaggerUIBundle`", "")  # no absolute address anywhere, in scripts neither
    addresses = [item for item in Addresses(page).found if "/" in item or "." in item]
    asked = [item for item in addresses if not item.startswith(("data:", "width="))]
    for item in (*asked, "openapi.json"):
        address = urlsplit(urljoin(OWN, item))
        assert address.netloc == "served"
        assert caller("GET", f"{address.path}?{address.query}").status_code == 200
    return asked


def test_the_page_references_nothing_of_another_host_and_what_it_references_is_answered(make_caller, served, files):
    caller = make_caller(served)
    answer = caller("GET", "/docs")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    sources = {source for part in policy.values() for source in part.split()}
    assert sources == {"'none'", "'self'", "'unsafe-inline'", "data:"}
    assert len(require_own(answer.text, caller)) == 2
    for name, kind in (("swagger-ui-bundle.js", "text/javascript"), ("swagger-ui.css", "text/css")):
        found = caller("GET", f"/docs/{name}")
        assert found.content == files[name]
        assert found.headers["content-type"] == f"{kind}; charset=utf-8"
        assert found.headers["cache-control"] == "private, max-age=31536000, immutable"
        assert f"docs/{name}?" in answer.text
    assert set(caller("GET", "/openapi.json").json()["paths"]) == {
        "/rank",
        "/recommend",
        "/score",
        "/health",
        "/metrics",
    }


def test_a_new_version_of_a_file_has_a_new_address(make_caller, served, files, tmp_path):
    before = Addresses(make_caller(served)("GET", "/docs").text).found
    (tmp_path / "static" / "swagger-ui.css").write_bytes(b"body { color: blue }")
    after = Addresses(make_caller(served)("GET", "/docs").text).found
    assert [old.partition("?")[0] for old, new in zip(before, after, strict=True) if old != new] == [
        "docs/swagger-ui.css"
    ]


@pytest.mark.parametrize(
    "path", ["/docs/", "/docs/redoc.standalone.js", "/docs/..%2fswagger-ui.css", "/docs/SWAGGER-UI.css"]
)
def test_no_other_path_under_docs_leads_anywhere(path, make_caller, served, files):
    answer = make_caller(served)("GET", path)
    assert (answer.status_code, answer.json()["error"]) == (404, "not_found")


@pytest.mark.parametrize("there", [None, SimpleNamespace(submodule_search_locations=["/nowhere"])])
def test_without_the_package_the_page_says_what_to_install(there, make_caller, served, monkeypatch):
    monkeypatch.setattr(docs_page.importlib.util, "find_spec", lambda name: there)
    caller = make_caller(served)
    answer = caller("GET", "/docs")
    assert (answer.status_code, answer.json()["error"]) == (404, "not_found")
    assert "pip install fastapi-offline" in answer.json()["message"]
    assert caller("GET", "/docs/swagger-ui.css").status_code == 404
    assert caller("GET", "/health").status_code == 200


@installed
def test_the_package_has_both_files_and_its_swagger_ui_reads_openapi_3_1(caller):
    assert caller("GET", "/openapi.json").json()["openapi"].startswith("3.1.")
    require_own(caller("GET", "/docs").text, caller)
    script = caller("GET", "/docs/swagger-ui-bundle.js").content
    assert b"isOAS31" in script  # the selector by which Swagger UI 5 takes 3.1; 4 has none
    assert len(caller("GET", "/docs/swagger-ui.css").content) > 50_000
