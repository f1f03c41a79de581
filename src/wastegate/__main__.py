"""`python -m wastegate` is `wastegate`."""

from wastegate.cli import main

raise SystemExit(main())
