"""`Optimizer`: a pure update per parameter, and the two ways to apply it.

    step()             with each parameter's own `grad`
    apply(gradients)   with gradients from elsewhere: a distributed autograd context

Both replace the arrays of parameters, so graphs recorded before keep their values, and several
optimizers may step one parameter from several threads: each update is atomic. What an optimizer
remembers is its own and is written into. The rows of a RowSparse gradient are written into the
table too, where nobody else holds that: a copy of a million rows for a hundred of them would be most
of the step (docs/sparse.md has the times).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from sys import getrefcount
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

import numpy as np

from telegrad.arrays import as_array, check_devices, device_of, is_array, namespace, to_device
from telegrad.autograd import Gradient, RowSparse, Tensor, is_row_sparse
from telegrad.types import Array

__all__ = [
    "Group",
    "HasGroups",
    "Optimizer",
    "Params",
    "State",
    "check_saved",
    "copied",
    "held_arrays",
    "in_blocks",
    "restored",
    "with_rows",
]


# -- what optimizers save: copies of what they remember, and the check of what is to be loaded ---


def copied(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `state` with arrays copied."""
    return {name: namespace(x).array(x) if is_array(x) else x for name, x in state.items()}


def restored(saved: Mapping[str, Any], parameter: Tensor) -> dict[str, Any]:
    """Returns `saved` with arrays copied to the dtype and device of `parameter`.

    Numbers stay numbers; an array of no axes is one, where the parameter has axes.
    """
    found: dict[str, Any] = {}
    for name, x in saved.items():
        array = _array(x)
        if isinstance(x, (bool, int, float)) or array.shape != parameter.shape:
            found[name] = array.item()
        else:
            moved = to_device(array, device_of(parameter.data))
            found[name] = namespace(moved).array(moved, dtype=parameter.dtype, copy=True)
    return found


def with_rows(state: Mapping[str, Any], name: str, rows: Array, values: Array) -> Array:
    """Returns the array `state[name]` with `values` in `rows`.

    It is that array itself if `state` alone holds it, and a copy otherwise.
    """
    sole = getrefcount(state[name]) == 2 and state[name].base is None  # 2: by `state` and the call
    table: Array = state[name] if sole else state[name].copy()
    table[rows] = values
    return table


def check_saved(
    who: str,
    own: Sequence[Mapping[str, Any]],
    defaults: Mapping[str, Any],
    groups: Sequence[Mapping[str, Any]],
    states: Mapping[int, Mapping[str, Any]],
) -> None:
    """Checks that what was saved is of such groups of such parameters.

    Args:
        who: The optimizer's class, for messages.
        own: The groups of the one that is to load.
        defaults: Its options.
        groups: The saved ones, with numbers as their `params`.
        states: What was saved, by the parameter's number.

    Raises:
        ValueError: Something differs; the message lists what.
    """
    counts = [len(group["params"]) for group in own], [len(group["params"]) for group in groups]
    problems = []
    if counts[0] != counts[1]:
        problems.append(f"its groups have {counts[1]} parameters, {counts[0]} needed")
    for i, group in enumerate(groups):
        missing = [name for name in defaults if name not in group]
        if missing:
            problems.append(f"group {i} lacks {', '.join(missing)}")
    params = [p for group in own for p in group["params"]]
    for i, state in states.items():
        if not 0 <= int(i) < len(params):
            problems.append(f"parameter {i} is none of {len(params)}")
            continue
        shape = params[int(i)].shape
        problems += [
            f"{name} of parameter {i} has shape {_array(x).shape}, {shape} needed"
            for name, x in state.items()
            if _array(x).shape not in ((), shape)
        ]
    if problems:
        raise ValueError(f"state does not fit {who}: {'; '.join(problems)}")


def _array(value: Any) -> Any:
    return value.data if isinstance(value, Tensor) else as_array(value)


# ------------------------------------------------------------------------------------------------

INITIAL_LR = "initial_lr"
"""What schedulers add to a group: the learning rate before the first of them."""

State: TypeAlias = Mapping[str, Any]
"""What an optimizer remembers of one parameter, arrays and numbers; empty at first; nobody else
holds its arrays."""

Group: TypeAlias = dict[str, Any]
"""Parameters, as `params`, and the options that they are stepped with."""

Params: TypeAlias = Iterable[Tensor | Mapping[str, Any]]
"""Parameters, or groups of them: not both."""


@runtime_checkable
class HasGroups(Protocol):
    """What schedulers drive: an `Optimizer`, or one whose parameters are elsewhere.

    Attributes:
        defaults: The options that groups have where they say nothing.
        param_groups: Each a dict with its options.
    """

    defaults: dict[str, Any]
    param_groups: list[Group]


class Optimizer(ABC):
    """Steps parameters; subclasses write `update`.

    Args:
        params: Leaves that need a gradient, each at most once; at least one. Or groups of them:
            dicts with `params` and the options that differ from `defaults`.
        defaults: The options of `update` that groups may have for themselves.

    Raises:
        TypeError: One of the parameters is no Tensor.
        ValueError: There are none, one is given twice, is no leaf, or needs no gradient; or an
            option of a group is unknown or out of its range.

    Attributes:
        defaults: As given.
        param_groups: Each a dict with its `params` and all options; `group["lr"]` may be assigned.
    """

    def __init__(
        self,
        params: Params,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        self.defaults: dict[str, Any] = dict(defaults or {})
        self.check(self.defaults)
        self.param_groups: list[Group] = []
        self._states: dict[Tensor, State] = {}
        self._group_of: dict[Tensor, Group] = {}
        for group in _as_groups(params):
            self.add_param_group(group)

    @property
    def params(self) -> tuple[Tensor, ...]:
        """The parameters of all groups, in the order given."""
        return tuple(self._group_of)

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Takes on further parameters, with options of their own.

        Args:
            group: `params`, and the options that differ from `defaults`.

        Raises:
            TypeError: See the class.
            ValueError: See the class.
        """
        options = {**self.defaults, **{k: x for k, x in group.items() if k != "params"}}
        unknown = sorted(options.keys() - self.defaults.keys() - {INITIAL_LR})
        if unknown:
            raise ValueError(
                f"{type(self).__name__} has no option {', '.join(unknown)}; a group may have "
                f"{', '.join(self.defaults) or 'none'}"
            )
        self.check(options)
        params = _checked(group.get("params", ()), len(self._group_of))
        if not self._group_of.keys().isdisjoint(params):
            raise ValueError("a parameter is given twice")
        made = {"params": list(params), **options}
        self.param_groups.append(made)
        self._group_of.update(dict.fromkeys(params, made))

    def check(self, options: Mapping[str, Any]) -> None:  # noqa: B027 - nothing need be checked
        """Raises a ValueError where an option is out of its range; subclasses may write it."""

    @abstractmethod
    def update(
        self, parameter: Array, gradient: Array, state: State, *args: Any, **options: Any
    ) -> tuple[Array, State]:
        """Returns the new array and the new state; keeps none of its arguments.

        Changes none of them but the arrays of `state`, which it may write into and return.

        Args:
            parameter: The present array.
            gradient: Of the same shape and dtype.
            state: What this returned last for this parameter; empty the first time.
            args: None are passed; a subclass leaves them out.
            options: Those of `defaults`, as the parameter's group has them; a subclass without
                defaults leaves them out.
        """

    def steps_rows(self, options: Mapping[str, Any]) -> bool:
        """Tells whether `update` goes item by item and leaves alone where the gradient is zero.

        A RowSparse gradient then steps its rows alone, and is made an array otherwise.
        """
        return False

    def initial(self, parameter: Array, options: Mapping[str, Any]) -> State:
        """Returns the state before the first step, for an optimizer that steps rows."""
        return {}

    def step(self) -> None:
        """Steps each parameter that has a `grad`; one without is left alone."""
        self.apply({p: p.grad for p in self._group_of if p.grad is not None})

    def apply(self, gradients: Mapping[Tensor, Gradient]) -> None:
        """Steps each own parameter that `gradients` has; what is not an own one is ignored.

        Args:
            gradients: By parameter, by identity; arrays or Tensors in the parameter's shape.

        Raises:
            ValueError: A gradient has another shape or is on another device; no parameter was
                stepped.
        """
        known: Group | None = None
        for parameter, gradient in self._own(gradients):  # group by group
            group = self._group_of[parameter]
            if group is not known:
                known, options = group, self._options(group)
            self._apply_one(parameter, gradient, options)

    def _own(self, gradients: Mapping[Tensor, Gradient]) -> list[tuple[Tensor, Any]]:
        """Returns the parameters that `gradients` has, each with its array, which fits."""
        own: list[tuple[Tensor, Any]] = []
        for parameter in self._group_of:
            if parameter not in gradients:
                continue
            gradient: Any = gradients[parameter]
            if isinstance(gradient, Tensor):
                gradient = gradient.data
            array = parameter.data
            if gradient.shape != array.shape:
                raise ValueError(
                    f"a gradient of shape {gradient.shape} for a parameter of shape {array.shape}"
                )
            if not type(gradient) is type(array) is np.ndarray:
                values = gradient.values if is_row_sparse(gradient) else gradient
                check_devices("a step", array, values)
            own.append((parameter, gradient))
        return own

    def _options(self, group: Group) -> dict[str, Any]:
        """Returns the options of `group`, for `update`."""
        options = {}
        for name in self.defaults:
            option = group[name]
            # A NumPy scalar would widen the dtype of what it is multiplied with.
            options[name] = option.item() if isinstance(option, np.generic) else option
        return options

    def _apply_one(self, parameter: Tensor, gradient: Any, options: Mapping[str, Any]) -> None:
        if type(gradient) is not np.ndarray and is_row_sparse(gradient):
            if self.steps_rows(options):
                self._apply_rows(parameter, gradient, options)
                return
            gradient = gradient.to_dense()

        def replace(array: Array) -> Array:  # runs under the parameter's lock, and so the state too
            state = self._states.get(parameter, {})
            exact = gradient.astype(array.dtype, copy=False)
            updated, self._states[parameter] = self.update(array, exact, state, **options)
            return updated

        parameter.replace_data(replace)

    def _apply_rows(
        self, parameter: Tensor, gradient: RowSparse, options: Mapping[str, Any]
    ) -> None:
        exact = gradient.coalesce().astype(parameter.dtype, copy=False)
        rows = exact.rows

        def change(array: Array) -> None:
            state = self._states.get(parameter) or self.initial(array, options)
            parts = {name: x[rows] if _of_rows(x, array) else x for name, x in state.items()}
            array[rows], stepped = self.update(array[rows], exact.values, parts, **options)
            self._states[parameter] = {
                name: with_rows(state, name, rows, x) if _of_rows(state.get(name), array) else x
                for name, x in stepped.items()
            }

        parameter.change_rows(change)

    def zero_grad(self) -> None:
        """Sets the `grad` of every parameter to None."""
        for parameter in self._group_of:
            parameter.grad = None

    def __repr__(self) -> str:
        lines = []
        for group in self.param_groups:
            options = [f"{k}={_said(x)}" for k, x in group.items() if k != "params"]
            lines.append(", ".join([f"  {len(group['params'])} parameters", *options]))
        return "\n".join([f"{type(self).__name__}(", *lines, ")"])

    def state_dict(self) -> dict[str, Any]:
        """Returns copies of all that it remembers, in PyTorch's layout.

        Returns:
            `state`: by the parameter's number, what is remembered of it. `param_groups`: the
            options of each group, with the numbers of its `params`.
        """
        number = {parameter: i for i, parameter in enumerate(self._group_of)}
        groups = [
            {**group, "params": [number[p] for p in group["params"]]} for group in self.param_groups
        ]
        state = {number[p]: self._saved(p) for p in number if p in self._states}
        return {"state": state, "param_groups": groups}

    def _saved(self, parameter: Tensor) -> dict[str, Any]:
        with parameter.steady():  # another thread may step its rows
            return copied(self._states[parameter])

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on from what `state_dict()` returned, for the same parameters in the same groups.

        Arrays are copied, to the dtype and device of their parameter. All is checked before
        anything changes.

        Raises:
            ValueError: Groups, options or shapes differ; the message lists where.
        """
        groups, states = state_dict["param_groups"], state_dict["state"]
        check_saved(type(self).__name__, self.param_groups, self.defaults, groups, states)
        for theirs in groups:
            self.check(theirs)
        for own, theirs in zip(self.param_groups, groups, strict=True):
            own.update({name: x for name, x in theirs.items() if name != "params"})
        self._states = {
            p: restored(states[i], p) for i, p in enumerate(self._group_of) if i in states
        }


def _said(option: Any) -> str:
    return f"{option:g}" if isinstance(option, float) else f"{option}"


def _of_rows(x: Any, parameter: Array) -> bool:
    return is_array(x) and x.shape == parameter.shape


def _as_groups(params: Any) -> list[Mapping[str, Any]]:
    if isinstance(params, Tensor):
        raise TypeError("params is one tensor, not several; write [param]")
    found = list(params)
    if not found:
        raise ValueError("an optimizer needs at least one parameter")
    return found if isinstance(found[0], Mapping) else [{"params": found}]


def _checked(params: Any, first: int) -> tuple[Tensor, ...]:
    found = (params,) if isinstance(params, Tensor) else tuple(params)
    if not found:
        raise ValueError("an optimizer needs at least one parameter, and so does each group")
    for i, parameter in enumerate(found, start=first):
        if not isinstance(parameter, Tensor):
            raise TypeError(f"parameter {i} is no Tensor but {type(parameter).__name__}")
        if not parameter.is_leaf or not parameter.requires_grad:
            what = "needs no gradient" if parameter.is_leaf else "was computed"
            raise ValueError(
                f"parameter {i} is no leaf that needs a gradient: one of shape {parameter.shape} that "
                f"{what}; pass [p for p in params if p.is_leaf and p.requires_grad]"
            )
    if len(set(found)) != len(found):
        raise ValueError("a parameter is given twice")
    return found


# -- how updates go over their arrays: cut alike into parts that stay in a core's cache ----------

BLOCK_BYTES: Final = 256 * 1024
"""Of each array. A step with momentum of 1.8 million float32 numbers took 1.9 ms whole, and in parts
of 64, 128, 256 and 512 KiB 1.5, 1.4, 1.3 and 1.3: an update has four to six arrays, and a core's
second cache is often of 1 to 2 MiB."""


def in_blocks(*arrays: Any) -> Iterable[tuple[Any, ...]]:
    """Gives views of the same rows of each, block after block; small ones all at once.

    An update is several passes over its arrays; done block by block, all but the first find them in
    the cache, and what is computed on the way is as small as a block. Arrays of a GPU are left
    whole: each pass is a launch there.

    Args:
        arrays: Of one shape.

    >>> [a.shape for a, b in in_blocks(np.zeros((1000, 100)), np.ones((1000, 100)))]
    [(327, 100), (327, 100), (327, 100), (19, 100)]
    """
    first = arrays[0]
    if first.nbytes <= BLOCK_BYTES or type(first) is not np.ndarray:
        return (arrays,)
    return _blocks(first, arrays)


def _blocks(first: Any, arrays: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    rows = max(1, BLOCK_BYTES * len(first) // first.nbytes)
    for i in range(0, len(first), rows):
        yield tuple([array[i : i + rows] for array in arrays])


def held_arrays(state: Mapping[str, Any], names: Iterable[str], like: Array) -> dict[str, Array]:
    """Returns those arrays of `state`; zeros, of the shape of `like`, where it has none yet."""
    return {
        name: state[name] if name in state else namespace(like).zeros_like(like) for name in names
    }
