"""Asks every benchmark and tool of a GPU run for its help, all in one process, whose imports cost more than the rest.

python tests/tools/helps.py          prints a JSON object: by module its help; exits 1 where one did not exit with 0
"""

import contextlib
import io
import json
import runpy
import sys
import traceback
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.gpu_steps import steps


def modules() -> list[str]:
    """Modules that a step runs, in order."""
    lines = [command.argv for step in steps() for command in step.commands]
    return list(dict.fromkeys(name for line in lines if (name := line[line.index("-m") + 1]) != "pytest"))


def main() -> int:
    warnings.simplefilter("ignore")
    found, failed = {}, []
    for module in modules():
        text, code, sys.argv[1:] = io.StringIO(), None, ["--help"]
        try:
            with contextlib.redirect_stdout(text):
                runpy.run_module(module, run_name="__main__")
        except SystemExit as stop:
            code = stop.code
        except BaseException:
            traceback.print_exc()
        if code != 0 or not text.getvalue().strip():
            failed.append(module)
            print(f"{module} --help: exit {code!r}", file=sys.stderr)
        found[module] = text.getvalue()
    print(json.dumps(found))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
