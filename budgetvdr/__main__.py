"""`python -m budgetvdr` is the `budgetvdr` command."""

import sys

from budgetvdr.cli import main

sys.exit(main())
