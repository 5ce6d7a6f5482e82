"""YAML as people write it: `1e-3` is a number."""

from __future__ import annotations

import re
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # yaml has no types
    """Plain data only."""


_Loader.yaml_implicit_resolvers = {key: list(value) for key, value in yaml.SafeLoader.yaml_implicit_resolvers.items()}
# YAML 1.1 wants a point and a signed exponent in a float, and would read 1e-3 as text.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def parse(text: str) -> Any:
    """The content of a YAML text; what is not YAML is a ValueError that says where.

    >>> [parse(text) for text in ("1e-3", "5", "true", "[fog, snow]", "hard")]
    [0.001, 5, True, ['fog', 'snow'], 'hard']
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {' '.join(str(error).split())}") from error
