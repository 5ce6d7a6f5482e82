"""The commands of `tidefast`, one file each.

A command is a module with `PURPOSE`, `EXAMPLE`, `EXTRA` (the extra of this project that it needs, or None),
`arguments(parser)` and `run(options)`, which returns the exit code or None for 0. All of them are imported for
`tidefast --help`, so what is slow to import is imported inside `arguments` or `run`.
"""
