"""A real server in a process of its own."""

import json
import os
import re
import time
from pathlib import Path
from typing import Any

from tests.processes import Forked

ROOT = Path(__file__).resolve().parents[3]


class Server:
    """`serve` in a process of its own. folders: of runs, the first that exists is served."""

    def __init__(self, folders: list[Path], log: Path, environment: dict[str, str] | None = None, **settings: Any):
        code = (
            "import json, logging, sys; from pathlib import Path\n"
            "from gigabatch.pipeline.serving.http.server import serve\n"
            "from gigabatch.pipeline.config.serving import ServeSettings\n"
            "logging.basicConfig(level=logging.INFO, format='%(message)s')\n"
            "sys.exit(serve(ServeSettings(**json.loads(sys.argv[1])), [Path(p) for p in sys.argv[2:]]))"
        )
        arguments = [json.dumps({"port": 0, **settings}), *map(str, folders)]
        self.log = log
        with open(log, "w") as out:
            self.process = Forked(code, *arguments, stderr=out, cwd=ROOT, env=os.environ | (environment or {}))
        self.port = int(self.wait_for(r"serving at http://.*:(\d+)")[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def wait_for(self, pattern: str) -> re.Match:
        until = time.monotonic() + 300  # a start may have to compile, beside other tests
        while time.monotonic() < until:
            if found := re.search(pattern, self.log.read_text()):
                return found
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise AssertionError(f"{pattern!r} did not come: {self.log.read_text()}")

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(timeout=120)
