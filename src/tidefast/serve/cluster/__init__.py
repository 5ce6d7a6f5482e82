"""The service beyond one process: partitions on a Ray cluster, one writer for each, and HTTP on every node."""
