"""Inputs behind URLs: what their artifact's key changes with."""

import email.utils
import io
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gigabatch.features.reading.sources import expand
from gigabatch.pipeline.store.keys import input_checksums, url_identity


class Remote:
    """A file system that says of its one file what a test wants, and counts how often it is read."""

    def __init__(self, content: bytes, **info: object) -> None:
        self.content, self.said, self.reads = content, info, 0

    def info(self, path):
        return {"name": path, "size": len(self.content), **self.said}

    def open(self, path, mode):
        self.reads += 1
        return io.BytesIO(self.content)


OLD = "Wed, 21 Oct 2015 07:28:00 GMT"
NOW = email.utils.formatdate(time.time() + 86_400, usegmt=True)  # within a tick of now, however slow the tests


@pytest.mark.parametrize(
    ("one", "other", "reads"),
    [
        (Remote(b"1", ETag='"a"'), Remote(b"1", ETag='"b"'), 0),
        (Remote(b"1", **{"Last-Modified": OLD}), Remote(b"1", **{"Last-Modified": OLD.replace("07", "08")}), 0),
        (Remote(b"1", **{"Last-Modified": OLD}), Remote(b"22", **{"Last-Modified": OLD}), 0),  # the length alone
        (Remote(b"1", **{"Last-Modified": NOW}), Remote(b"2", **{"Last-Modified": NOW}), 1),  # within a tick
        (Remote(b"1"), Remote(b"2"), 1),  # a server that says nothing
    ],
)
def test_a_url_is_known_by_its_validators_and_where_it_has_none_by_its_content(one, other, reads):
    """P7: over HTTP fsspec's key is the URL alone, so a changed file gave stale features."""
    found = [url_identity(remote, "http://a/rows.csv") for remote in (one, other)]
    assert found[0] != found[1]
    assert found == [url_identity(remote, "http://a/rows.csv") for remote in (one, other)]
    assert (one.reads, other.reads) == (2 * reads, 2 * reads)


@pytest.mark.parametrize("etag", [True, False])
def test_a_file_on_a_web_server_that_changes_changes_the_key(etag, tmp_path):
    pytest.importorskip("aiohttp", reason="the extra `remote`")
    content = [b"x\n1\n"]

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(200)
            self.send_header("content-length", str(len(content[0])))
            if etag:
                self.send_header("etag", f'"{zlib.crc32(content[0])}"')
            self.end_headers()

        def do_GET(self):
            self.do_HEAD()
            self.wfile.write(content[0])

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/rows.csv"
        keys = [input_checksums([url], tmp_path), input_checksums(expand(url), tmp_path)]
        content[0] = b"x\n2\n"  # as long as before
        keys.append(input_checksums([url], tmp_path))
        server.shutdown()
    assert keys[0] == keys[1] != keys[2]
