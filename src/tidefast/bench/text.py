"""YAML, with values as everywhere else in tidefast: `1e-3` is a number."""

from __future__ import annotations

from typing import Any, ClassVar

import yaml

from tidefast.core import notation


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # yaml has no types
    """Plain data only."""

    # Of all that YAML 1.1 reads into a word (1e-3 would be text, 1:30 a number), only the key that merges stays.
    yaml_implicit_resolvers: ClassVar = {"<": yaml.SafeLoader.yaml_implicit_resolvers["<"]}

    def _word(self, node: yaml.ScalarNode) -> Any:
        word = self.construct_scalar(node)
        return notation.scalar(word) if node.style is None else word


_Loader.add_constructor("tag:yaml.org,2002:str", _Loader._word)


def parse(text: str) -> Any:
    """The content of a YAML text; what is not YAML is a ValueError that says where.

    >>> [parse(text) for text in ("1e-3", "5", "true", "[fog, snow]", "hard")]
    [0.001, 5, True, ['fog', 'snow'], 'hard']
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {' '.join(str(error).split())}") from error
