"""Trees: dicts, lists, tuples, named tuples and dataclasses, nested, with anything as leaves."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

__all__ = ["Rebuild", "flatten", "is_branch", "tree_map"]

Rebuild: TypeAlias = "Callable[[Iterable[Any]], Any]"
"""Makes a tree of the same structure, with other leaves in the same order."""


def flatten(tree: Any) -> tuple[list[Any], Rebuild]:
    """Returns the leaves of `tree`, and what builds such a tree of others.

    Branches are dicts, lists, tuples, named tuples and instances of dataclasses; None has no
    leaves. Dicts keep the order of their keys. A dataclass is built again without its `__init__`.

    >>> leaves, rebuild = flatten({"a": 1, "b": (2, [3, None])})
    >>> leaves, rebuild([4, 5, 6])
    ([1, 2, 3], {'a': 4, 'b': (5, [6, None])})
    """
    leaves = list(_leaves(tree))

    def rebuild(others: Iterable[Any]) -> Any:
        remaining = iter(others)
        return _map(lambda _: next(remaining), tree)

    return leaves, rebuild


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    """Returns `tree` with `function(leaf)` in the place of each leaf.

    >>> tree_map(lambda x: x + 1, {"a": 1, "b": [2, 3]})
    {'a': 2, 'b': [3, 4]}
    """
    return _map(function, tree)


def is_branch(tree: Any) -> bool:
    """Tells whether `tree` is no leaf."""
    return (
        tree is None
        or isinstance(tree, (dict, list, tuple))
        or (dataclasses.is_dataclass(tree) and not isinstance(tree, type))
    )


def _children(tree: Any) -> list[Any]:
    if tree is None:
        return []
    if isinstance(tree, dict):
        return list(tree.values())
    if isinstance(tree, (list, tuple)):
        return list(tree)
    return [getattr(tree, each.name) for each in dataclasses.fields(tree)]


def _leaves(tree: Any) -> Iterator[Any]:
    if not is_branch(tree):
        yield tree
        return
    for child in _children(tree):
        yield from _leaves(child)


def _map(function: Callable[[Any], Any], tree: Any) -> Any:
    if not is_branch(tree):
        return function(tree)
    children = [_map(function, child) for child in _children(tree)]
    if tree is None:
        return None
    if isinstance(tree, dict):
        copied = copy.copy(tree)  # its kind with what that knows, such as a default factory
        copied.update(zip(tree, children, strict=True))
        return copied
    if isinstance(tree, (list, tuple)):
        kind: Any = type(tree)
        named = isinstance(tree, tuple) and kind is not tuple
        return kind(*children) if named else kind(children)
    made = object.__new__(type(tree))
    for each, child in zip(dataclasses.fields(tree), children, strict=True):
        object.__setattr__(made, each.name, child)  # frozen ones too
    return made
