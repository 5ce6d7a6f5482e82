"""`python -m holdfast`."""

from holdfast.cli import main

raise SystemExit(main())
