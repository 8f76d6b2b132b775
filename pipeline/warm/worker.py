"""A process that compiles loops: `python -m gigabatch.pipeline.warm.worker`.

It reads lines of `loops.txt` from standard input. Of each it writes its name before and after it has compiled it.
"""

from __future__ import annotations

import sys

from gigabatch.pipeline.warm.listed import Loop

BEGUN, DONE = "begun", "done"


def main() -> None:
    for line in sys.stdin:
        seconds, *rest = line.rstrip("\n").split(" ", 3)
        loop = Loop(float(seconds), *rest)
        print(BEGUN, loop.name, flush=True)
        loop.dispatcher.compile(loop.types)
        print(DONE, loop.name, flush=True)


if __name__ == "__main__":
    main()
