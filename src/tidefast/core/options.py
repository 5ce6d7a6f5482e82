"""What can be set on a method, a policy or any other dataclass: read from its declarations, for lists and pages."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import textwrap
from dataclasses import dataclass

from tidefast.core.constraints import constraints_of
from tidefast.core.registry import Registry


@dataclass(frozen=True)
class Option:
    """One field that a caller may set, in words."""

    name: str
    kind: str
    """Such as "int or None"."""
    legal: str
    """Such as "[0.0, 1.0]"; empty where every value of the kind is legal."""
    default: str
    """As Python; empty where there is none, and the option must be given."""
    meaning: str
    """The docstring below the field; empty where its name says it all."""


def options_of(cls: type) -> list[Option]:
    """The options of a dataclass, in the order of its fields.

    >>> options_of(Option)[1]
    Option(name='kind', kind='str', legal='', default='', meaning='Such as "int or None".')
    """
    return [
        Option(field.name, *_accepted(cls, field.name), _default(field), _meaning(cls, field.name))
        for field in dataclasses.fields(cls)
        if field.init
    ]


def _accepted(cls: type, name: str) -> tuple[str, str]:
    """The kind and the legal values; of a field that is set to a registered part, the names of the parts."""
    registry = getattr(inspect.getattr_static(cls, name, None), "registry", None)
    if isinstance(registry, Registry):
        return "part", f"one of {', '.join(map(repr, registry.names()))}"
    constraint = constraints_of(cls)[name]
    return constraint.kind, constraint.legal


def _default(field: dataclasses.Field[object]) -> str:
    return "" if field.default is dataclasses.MISSING else repr(field.default)


def _meaning(cls: type, name: str) -> str:
    return next((meaning for base in cls.__mro__ if (meaning := _meanings(base).get(name))), "")


@functools.cache
def _meanings(cls: type) -> dict[str, str]:
    """The docstrings below the fields of a class itself; none where its source cannot be read."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    except (OSError, TypeError, SyntaxError):
        return {}
    assert isinstance(tree, ast.ClassDef)
    meanings = {}
    for field, after in zip(tree.body, tree.body[1:], strict=False):
        match field, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                meanings[name] = " ".join(text.split())
    return meanings
