"""`python -m gigabatch` is the command `gigabatch`."""

import sys

from gigabatch.pipeline.commands.app import main

sys.exit(main())
