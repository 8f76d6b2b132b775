"""Chromium driven over a pipe by its DevTools protocol: pages at any width, light or dark, what they log, pictures."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def executable() -> str | None:
    """The browser of this machine, or None."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page of a headless browser."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing, self._rest, self._number = reading, writing, b"", 0
        self.logged: list[str] = []
        target = self._ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._session = self._ask("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **arguments: Any) -> dict[str, Any]:
        """The answer to a command of the DevTools protocol."""
        return self._ask(method, arguments, self._session)

    def _ask(self, method: str, arguments: dict[str, Any], session: str | None = None) -> dict[str, Any]:
        self._number += 1
        command = {"id": self._number, "method": method, "params": arguments}
        command |= {"sessionId": session} if session else {}
        os.write(self._writing, json.dumps(command).encode() + b"\0")
        while True:
            message = self._message()
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]
            self._note(message)

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._reading, 1 << 20)
            assert part, "the browser ended"
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        return json.loads(text)

    def _note(self, message: dict[str, Any]) -> None:
        told = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.logged.append(str(told["exceptionDetails"]))
        if message.get("method") == "Runtime.consoleAPICalled":
            self.logged.append(str(told["args"]))
        if message.get("method") == "Log.entryAdded":
            self.logged.append(f"{told['entry']['level']}: {told['entry']['text']}")

    def open(self, path: Path, width: int, scheme: str) -> None:
        """Load a page in a window `width` pixels wide; scheme: light or dark."""
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.ask("Emulation.setDeviceMetricsOverride", **metrics)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.ask("Page.navigate", url=path.resolve().as_uri())
        ready = "new Promise(done => document.readyState == 'complete' ? done() : addEventListener('load', done))"
        self.ask("Runtime.evaluate", expression=ready, awaitPromise=True)

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript gives, of JSON types."""
        found = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def picture(self, path: Path, height: int | None = None) -> None:
        """A PNG of the page, or of its first `height` pixels."""
        size = self.value("[document.documentElement.clientWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": size[0], "height": min(size[1], height or size[1]), "scale": 1}
        found = self.ask("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def printed(self) -> bytes:
        """The page as PDF, A4."""
        found = self.ask("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, preferCSSPageSize=True)
        return base64.b64decode(found["data"])


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A browser that ends with the block."""
    path = executable()
    assert path is not None
    to_browser, writing = os.pipe()
    reading, from_browser = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        flags += ["--hide-scrollbars", "--disable-background-networking", f"--user-data-dir={folder}"]
        # The protocol's pipe is the descriptors 3 (commands) and 4 (answers), which a shell puts in place.
        shell = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        process = subprocess.Popen(
            ["bash", "-c", shell, path, *flags, "--remote-debugging-pipe"],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        try:
            yield Browser(reading, writing)
        finally:
            os.close(writing)
            os.close(reading)
            process.terminate()
            process.wait(timeout=30)
