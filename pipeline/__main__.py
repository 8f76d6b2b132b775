"""`python -m pipeline` is the command `gigabatch`."""

import sys

from pipeline.commands.app import main

sys.exit(main())
