"""What several partitions say, as one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{)?")


def merged_metrics(texts: Mapping[str, str]) -> bytes:
    """The metrics of all partitions in Prometheus' text format, each with a label that says whose it is.

    They are not summed: a partition that starts anew counts from 0, and only by itself that is seen for what it is.

    >>> one = '# HELP a_total Some.\\n# TYPE a_total counter\\na_total{by="x"} 1.0\\n'
    >>> print(merged_metrics({"0": one, "1": one}).decode().strip())
    # HELP a_total Some.
    # TYPE a_total counter
    a_total{partition="0",by="x"} 1.0
    a_total{partition="1",by="x"} 1.0
    """
    families: dict[str, tuple[list[str], list[str]]] = {}
    for partition, text in texts.items():
        current: tuple[list[str], list[str]] = ([], [])
        for line in text.splitlines():
            if line.startswith("# HELP "):
                current = families.setdefault(line.split(" ", 3)[2], ([line], []))
            elif line.startswith("#"):
                if line not in current[0]:
                    current[0].append(line)
            elif line:
                current[1].append(_labelled(line, partition))
    lines = [line for heads, samples in families.values() for line in (*heads, *samples)]
    return "".join(f"{line}\n" for line in lines).encode()


def _labelled(line: str, partition: str) -> str:
    found = _SAMPLE.match(line)
    assert found is not None, line
    return f'{found[1]}{{partition="{partition}"{"," if found[2] else "}"}{line[found.end() :]}'


def merged_snapshots(lists: Iterable[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Snapshots by name, the oldest first; those of one name count as one.

    >>> one = {"name": "000007", "taken": 1.0, "streams": 2}
    >>> merged_snapshots([[one], [{**one, "taken": 2.0}]])
    [{'name': '000007', 'taken': 2.0, 'streams': 4}]
    """
    rows: dict[str, dict[str, Any]] = {}
    for snapshot in (one for each in lists for one in each):
        row = rows.setdefault(snapshot["name"], {**snapshot, "streams": 0})
        row["taken"] = max(row["taken"], snapshot["taken"])
        row["streams"] += snapshot["streams"]
    return sorted(rows.values(), key=lambda row: int(row["name"]))
