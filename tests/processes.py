"""Python processes that have imported the package already: forks of one that has, which nothing else has used.

`import torch` and the package take several seconds of a process; that they can be imported is tested elsewhere. Tests
of what a process imports, and of the first moments of one, start an interpreter of their own.
"""

import atexit
import inspect
import json
import os
import select
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# The child of a child goes on below the loop, as a script of its own: what it raises, its threads and what it prints
# at last are the interpreter's matter. Its parent waits for it and tells its number and its end.
ORIGIN = """
import json, os, signal, socket, struct, sys
import gigabatch.pipeline.commands.app, gigabatch.pipeline.nightly.nightly, gigabatch.pipeline.serving.http.server
from gigabatch import Bundle, Pipeline, load_bundle, own_code

asked_by = socket.socket(fileno=int(sys.argv[1]))
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    asked, handles, _, _ = socket.recv_fds(asked_by, 1 << 20, 4)
    if not asked:
        os._exit(0)
    if os.fork() == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        child = os.fork()
        if child == 0:
            break
        for handle in handles[:3]:
            os.close(handle)
        os.write(handles[3], struct.pack("i", child))
        os.write(handles[3], struct.pack("i", os.waitpid(child, 0)[1]))
        os._exit(0)
    for handle in handles:
        os.close(handle)

asked = json.loads(asked)
asked_by.close()
for handle in range(3):
    os.dup2(handles[handle], handle)
for handle in handles:
    os.close(handle)
os.chdir(asked["folder"])
os.environ.clear()
os.environ.update(asked["environment"])
sys.path[1:1] = [path for path in os.environ.get("PYTHONPATH", "").split(":") if path not in ("", *sys.path)]
if "OMP_NUM_THREADS" in os.environ:
    import torch
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    del torch
sys.argv[:] = ["-c", *asked["arguments"]]
code = asked["code"]
del Bundle, Pipeline, asked, asked_by, child, gigabatch, handle, handles, json, load_bundle, os, own_code
del signal, socket, struct, sys, _
exec(compile(code, "<string>", "exec"))
"""
_origins: list[tuple[subprocess.Popen, socket.socket]] = []
_lock = threading.Lock()


def _origin() -> socket.socket:
    if not _origins or _origins[0][0].poll() is not None:
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        started = subprocess.Popen(
            [sys.executable, "-c", ORIGIN, str(there.fileno())],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=ROOT, env=environment, pass_fds=[there.fileno()],
        )  # fmt: skip
        there.close()
        _origins[:] = [(started, here)]
        atexit.register(started.kill)
    return _origins[0][1]


class Forked(subprocess.Popen):
    """As `subprocess.Popen([sys.executable, "-c", code, *arguments], **options)`, with the package's imports done.

    Of the options `cwd`, `env`, `stdin`, `stdout`, `stderr`, and what says how these are read. What an interpreter
    reads of its environment when it starts is that of the tests, but for the number of threads.
    """

    _told = -1

    def __init__(self, code: str, *arguments: str, **options: Any) -> None:
        super().__init__(["-c", code, *arguments], **options)

    def _execute_child(self, *given: Any) -> None:
        of = inspect.signature(subprocess.Popen._execute_child).bind(self, *given).arguments
        environment: Mapping[str, str] = os.environ if of["env"] is None else of["env"]
        asked = {
            "code": of["args"][1], "arguments": of["args"][2:], "folder": str(of["cwd"] or os.getcwd()),
            "environment": dict(environment),
        }  # fmt: skip
        streams = [
            default if asked_for == -1 else asked_for
            for default, asked_for in enumerate((of["p2cread"], of["c2pwrite"], of["errwrite"]))
        ]
        self._told, tells = os.pipe()
        try:
            with _lock:
                socket.send_fds(_origin(), [json.dumps(asked).encode()], [*streams, tells])
        finally:
            os.close(tells)
            pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
            self._close_pipe_fds(*(of[name] for name in pipes))
        self.pid = self._next()
        self._child_created = True

    def _next(self) -> int:
        read = os.read(self._told, 4)
        assert len(read) == 4, "the process that is forked has ended"
        return int(struct.unpack("i", read)[0])

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._told == -1 or (wait_flags & os.WNOHANG and not select.select([self._told], [], [], 0)[0]):
            return 0, 0
        status = self._next()
        os.close(self._told)
        self._told = -1
        return self.pid, status

    def _internal_poll(self, **_: Any) -> int | None:
        if self.returncode is None and self._waitpid_lock.acquire(False):
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode


def python(code: str, *arguments: str, input: str | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
    """`python -c code`, with the package's imports done; its output and exit status."""
    found: dict[str, Any] = {
        "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True,
        "stdin": None if input is None else subprocess.PIPE,
        "env": os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    }  # fmt: skip
    with Forked(code, *arguments, **found | options) as process:
        out, err = process.communicate(input)
    return subprocess.CompletedProcess(code, process.returncode, out, err)
