"""The commands of `tidefast`, one file each.

A command is a module with `PURPOSE`, `EXAMPLE`, `arguments(parser)` and `run(options)`, which returns the exit code or
None for 0. It is imported for every call of `tidefast`, so what is slow to import is imported inside `run`.
"""
