"""Which node a partition belongs on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


def best_node(where: Mapping[int, str], nodes: Mapping[str, float]) -> str:
    """The node that one more partition burdens least.

    where: the node of each partition.
    nodes: cores of each node that takes part.

    >>> best_node({0: "a", 1: "b"}, {"a": 2.0, "b": 4.0})
    'b'
    """
    counts = Counter(where.values())
    return min(sorted(nodes), key=lambda node: (counts[node] + 1) / nodes[node])


def next_move(where: Mapping[int, str], nodes: Mapping[str, float]) -> tuple[int, str] | None:
    """The partition to move next, and where to; None when no move makes the most burdened node less so.

    >>> next_move({0: "a", 1: "a", 2: "a"}, {"a": 2.0, "b": 2.0})
    (2, 'b')
    >>> next_move({0: "a", 1: "a", 2: "b"}, {"a": 2.0, "b": 2.0})
    >>> next_move({0: "gone"}, {"a": 2.0})
    (0, 'a')
    """
    if not nodes:
        return None
    strays = [partition for partition, node in where.items() if node not in nodes]
    if strays:
        return strays[0], best_node(where, nodes)
    counts = Counter(where.values())
    fullest = max(sorted(nodes), key=lambda node: counts[node] / nodes[node])
    target = best_node(where, nodes)
    if (counts[target] + 1) / nodes[target] >= counts[fullest] / nodes[fullest]:
        return None
    return max(partition for partition, node in where.items() if node == fullest), target
