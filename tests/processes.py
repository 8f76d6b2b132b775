"""Python processes that have imported what a bundle needs: forks of one that has, which nothing else has used.

`import torch` and the package take several seconds of a process; that they can be imported is tested elsewhere.
"""

import atexit
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ORIGIN = """
import contextlib, json, os, sys, traceback
from gigabatch import Bundle, Pipeline, load_bundle, own_code

for line in sys.stdin:
    asked = json.loads(line)
    child = os.fork()
    if child == 0:
        os.chdir(asked["folder"])
        os.environ.clear()
        os.environ.update(asked["environment"])
        for handle, name in ((0, os.devnull), (1, asked["out"]), (2, asked["err"])):
            os.dup2(os.open(name, os.O_RDONLY if handle == 0 else os.O_WRONLY), handle)
        ended = 1
        try:
            sys.argv, own = ["-c"], {"__name__": "__main__"}
            exec(compile(asked["code"], "<string>", "exec"), own)
            ended = 0
        except SystemExit as error:
            ended = error.code if isinstance(error.code, int) else int(error.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError):
                    stream.flush()
            os._exit(ended)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
_origins: list[subprocess.Popen] = []
_lock = threading.Lock()


def _origin() -> subprocess.Popen:
    if not _origins or _origins[0].poll() is not None:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        _origins[:] = [subprocess.Popen([sys.executable, "-c", ORIGIN], cwd=ROOT, env=environment, **pipes)]
        atexit.register(_origins[0].kill)
    return _origins[0]


def python(code: str) -> subprocess.CompletedProcess[str]:
    """`python -c code` in the working folder, with the package's imports done; its output and exit status."""
    with _lock, tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as err:
        asked = {
            "code": code, "folder": os.getcwd(), "out": out.name, "err": err.name,
            "environment": os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        }  # fmt: skip
        origin = _origin()
        assert origin.stdin is not None
        assert origin.stdout is not None
        origin.stdin.write(json.dumps(asked) + "\n")
        origin.stdin.flush()
        told = origin.stdout.readline()
        assert told, "the process that is forked has ended"
        return subprocess.CompletedProcess(code, int(told), out.read(), err.read())
