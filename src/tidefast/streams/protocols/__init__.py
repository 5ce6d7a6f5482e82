"""The published benchmarks as named streams; docs/benchmarks.md has the facts, one file here for each family."""

from tidefast.streams.protocols import cdc, cifar_c, cin_c, in_c, in_d109, petta

__all__ = ["cdc", "cifar_c", "cin_c", "in_c", "in_d109", "petta"]
