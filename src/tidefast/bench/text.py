"""YAML, with values as everywhere else in tidefast: `1e-3` is a number."""

from __future__ import annotations

from typing import Any, ClassVar

import yaml

from tidefast.core import notation

_DEEPEST, _MOST = 30, 100_000
_TOO_MUCH = f"it is nested deeper than {_DEEPEST} levels, holds more than {_MOST} values, or contains itself"


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
        content = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {' '.join(str(error).split())}") from error
    except RecursionError:
        raise ValueError(_TOO_MUCH) from None
    _require_finite_extent(content)
    return content


def _require_finite_extent(content: Any) -> None:
    """That it can be gone over: an anchor within itself, or anchors of anchors, make few lines endless."""
    layer, seen = [content], 0
    for _ in range(_DEEPEST):
        seen += len(layer)
        if seen > _MOST:
            break
        layer = [
            value
            for item in layer
            if isinstance(item, (list, dict))
            for value in (item.values() if isinstance(item, dict) else item)
        ]
        if not layer:
            return
    raise ValueError(_TOO_MUCH)
