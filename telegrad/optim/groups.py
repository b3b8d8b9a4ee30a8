"""The groups of parameters of an optimizer, which its user may edit between two steps."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Collection, Mapping
from typing import Any, Protocol, TypeAlias, final, runtime_checkable

from telegrad.autograd import Tensor

INITIAL_LR = "initial_lr"
"""The key that schedulers add to a group: the learning rate before the first scheduler."""

Group: TypeAlias = dict[str, Any]
"""A group: parameters, under `params`, and the options of their steps."""


@runtime_checkable
class HasGroups(Protocol):
    """The interface that schedulers need: `Optimizer` has it, and optimizers of remote parameters.

    Attributes:
        defaults: The options of groups that do not set them.
        param_groups: The groups, each a dict with its options.

    >>> from telegrad import optim, tensor
    >>> isinstance(optim.SGD([tensor(1.0, requires_grad=True)], lr=0.1), HasGroups)
    True
    """

    defaults: dict[str, Any]
    param_groups: list[Group]


class OwnsGroups(HasGroups, Protocol):
    """An optimizer that checks the options of its groups."""

    def check(self, options: Mapping[str, Any]) -> None:
        """Raises ValueError if an option is out of its range."""


@final
class ParameterGroups:
    """The groups of an optimizer as they were last read from its `param_groups`.

    Attributes:
        of: The group of each parameter, in the order of the groups.
    """

    def __init__(self) -> None:
        self.of: dict[Tensor, Group] = {}
        self._read: list[tuple[Group, tuple[Tensor, ...]]] = []

    def add(self, optimizer: OwnsGroups, group: Mapping[str, Any]) -> None:
        """Adds a group, with the options that it does not set; raises as `read`."""
        options = _with_defaults(optimizer, group)
        self.read(optimizer, {"params": group.get("params", ()), **options})

    def read(self, optimizer: OwnsGroups, *added: Group) -> dict[Tensor, Group]:
        """Reads groups that were edited since, or are added; returns the group of each parameter.

        Raises:
            TypeError: A group is no dict, or a parameter no Tensor.
            ValueError: A group is empty, or a parameter or an option is invalid. Nothing has
                changed then.
        """
        groups = [*optimizer.param_groups, *added]
        if len(groups) == len(self._read) and all(map(_is_as_read, groups, self._read)):
            return self.of
        found: dict[Tensor, Group] = {}
        options: list[dict[str, Any]] = []
        for group in groups:
            known = any(group is each for each, _ in self._read)
            options.append({} if known else _with_defaults(optimizer, group))
            params = _checked(group.get("params", ()), len(found), self.of)
            if not found.keys().isdisjoint(params):
                raise ValueError("a parameter is given twice")
            found.update(dict.fromkeys(params, group))
        for group, more in zip(groups, options, strict=True):
            group.update({**more, "params": [p for p in found if found[p] is group]})
        optimizer.param_groups += added
        self._read = [(group, tuple(group["params"])) for group in groups]
        self.of = found
        return found


def _is_as_read(group: Group, read: tuple[Group, tuple[Tensor, ...]]) -> bool:
    known, params = read
    now: Any = known.get("params")
    same = group is known and type(now) is list and len(now) == len(params)
    return same and all(map(operator.is_, now, params))


def _with_defaults(optimizer: OwnsGroups, group: object) -> dict[str, Any]:
    if not isinstance(group, Mapping):
        raise TypeError(f"a group is a dict with 'params', not {reprlib.repr(group)}")
    options = {**optimizer.defaults, **{k: x for k, x in group.items() if k != "params"}}
    unknown = sorted(options.keys() - optimizer.defaults.keys() - {INITIAL_LR})
    if unknown:
        raise ValueError(
            f"{type(optimizer).__name__} has no option {', '.join(unknown)}; a group may have "
            f"{', '.join(optimizer.defaults) or 'none'}"
        )
    optimizer.check(options)
    return options


def as_groups(params: Any) -> list[Mapping[str, Any]]:
    """Returns the groups that a constructor was given, or the parameters as one group."""
    if isinstance(params, Tensor):
        raise TypeError("params is one tensor, not several; write [param]")
    found = list(params)
    if not found:
        raise ValueError("an optimizer needs at least one parameter")
    return found if isinstance(found[0], Mapping) else [{"params": found}]


def _checked(params: Any, first: int, known: Collection[Tensor]) -> tuple[Tensor, ...]:
    """Returns the parameters of a group; those that the optimizer knows may be frozen by now."""
    found = (params,) if isinstance(params, Tensor) else tuple(params)
    if not found:
        raise ValueError("an optimizer needs at least one parameter, and so does each group")
    for i, parameter in enumerate(found, start=first):
        if not isinstance(parameter, Tensor):
            raise TypeError(f"parameter {i} must be a Tensor, not {type(parameter).__name__}")
        trained = parameter.is_leaf and parameter.requires_grad
        if not trained and parameter not in known:
            what = "needs no gradient" if parameter.is_leaf else "was computed"
            raise ValueError(
                f"parameter {i} is not a leaf that needs a gradient (shape {parameter.shape}): it "
                f"{what}; pass [p for p in params if p.is_leaf and p.requires_grad]"
            )
    if len(set(found)) != len(found):
        raise ValueError("a parameter is given twice")
    return found
