"""The command `gigabatch`, which `python -m gigabatch` is, too."""

import sys

from gigabatch.pipeline.stopping import end_at_once


def main() -> int:
    """Runs the command of this process's arguments, which Ctrl-C stops without a traceback from here on: the imports
    behind it take half a second."""
    end_at_once()
    from gigabatch.pipeline.commands.app import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
