"""`python -m tidefast`."""

from tidefast.cli import main

raise SystemExit(main())
