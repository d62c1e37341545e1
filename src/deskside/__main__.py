"""`python -m deskside` is the command `deskside`."""

import sys

from deskside.cli import main

sys.exit(main())
