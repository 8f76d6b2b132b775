"""`python -m pipeline` is the command `gigabatch`."""

import sys

from pipeline.cli import main

sys.exit(main())
