"""The commands of `holdfast`, one file each.

A command is a module with `PURPOSE`, `EXAMPLE`, `arguments(parser)` and `run(options)`, which returns the exit code or
None for 0. It is imported for every call of `holdfast`, so what is slow to import is imported inside `run`.
"""
