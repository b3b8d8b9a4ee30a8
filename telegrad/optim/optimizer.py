"""`Optimizer`: a pure update per parameter, and the two methods that apply it.

    step()             with each parameter's own `grad`
    apply(gradients)   with gradients from elsewhere: a distributed autograd context

Both methods replace the arrays of parameters, so graphs that were recorded before keep their
values. Each update is atomic, so several optimizers may step one parameter from several threads. An
optimizer's state belongs to the optimizer alone, so updates write into it. The rows of a
`RowSparse` gradient are written into the table in place, too, if nothing else refers to the table:
a copy of a million rows for the sake of a hundred would take most of the step (docs/sparse.md has
the times).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeAlias, cast

import numpy as np

from telegrad import kernels
from telegrad.arrays import (
    check_devices,
    computing_dtype,
    is_array,
    is_cupy,
    namespace,
)
from telegrad.autograd import Gradient, RowSparse, Tensor, is_row_sparse
from telegrad.autograd.seams import change_rows, replace_all, replace_data, steady
from telegrad.optim.groups import Group, ParameterGroups, as_groups
from telegrad.optim.saved_state import check_saved_state, copied, restored, saved_parts
from telegrad.types import Array

State: TypeAlias = Mapping[str, Any]
"""An optimizer's state of one parameter: arrays and numbers by name, empty at first. Nothing else
refers to its arrays."""

Params: TypeAlias = Iterable[Tensor | Mapping[str, Any]]
"""Either parameters or groups of them, not both."""


# All are False for NaN, so NaN is refused, too.
_IN_RANGE: Final[Mapping[str, Callable[[Any], bool]]] = {
    ">= 0": lambda x: bool(x >= 0),
    ">= 0 and <= 1": lambda x: bool(0 <= x <= 1),
    "of two numbers >= 0 and < 1": lambda x: len(x) == 2 and all(0 <= each < 1 for each in x),
}


class Optimizer(ABC):
    """Steps parameters; subclasses write `update`.

    Args:
        params: Leaves that need a gradient, each at most once; at least one. Or groups of them:
            dicts with `params` and the options that differ from `defaults`.
        defaults: The options of `update`, which a group may override.

    Raises:
        TypeError: A parameter is not a Tensor.
        ValueError: There are no parameters; or a parameter is given twice, is not a leaf, or needs
            no gradient; or an option of a group is unknown or out of its range.

    Attributes:
        defaults: The options that were given.
        param_groups: The groups, each a dict with its `params` and all options; `group["lr"]` may
            be assigned.

    >>> from telegrad import tensor
    >>> class SignDescent(Optimizer):
    ...     def update(self, parameter, gradient, state):
    ...         return parameter - 0.5 * np.sign(gradient), state
    >>> x = tensor([1.0, -2.0], requires_grad=True)
    >>> optimizer = SignDescent([x])
    >>> (x * x).sum().backward()
    >>> optimizer.step()
    >>> x
    tensor([ 0.5, -1.5], requires_grad=True)
    """

    _ranges: ClassVar[Mapping[str, str]] = {}  # of options, in the words of `_IN_RANGE`

    def __init__(
        self,
        params: Params,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        self.defaults: dict[str, Any] = dict(defaults or {})
        self.check(self.defaults)
        self.param_groups: list[Group] = []
        self._states: dict[Tensor, State] = {}
        self._groups = ParameterGroups()
        by = next(each for each in type(self).__mro__ if "update" in vars(each))
        self._has_rule = "rule" in vars(by)  # not that of a class whose `update` is overridden
        for group in as_groups(params):
            self.add_param_group(group)

    @property
    def params(self) -> tuple[Tensor, ...]:
        """The parameters of all groups, in the order given."""
        return tuple(self._groups.read(self))

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Adds parameters with options of their own.

        Args:
            group: A dict with `params`, and the options that differ from `defaults`.

        Raises:
            TypeError: A parameter is not a Tensor.
            ValueError: The group is empty, or a parameter or an option is invalid.
        """
        self._groups.add(self, group)

    def check(self, options: Mapping[str, Any]) -> None:
        """Checks options; subclasses may override this method.

        Raises:
            ValueError: An option is out of its range.
        """
        if not all(_is_in_range(words, options[name]) for name, words in self._ranges.items()):
            wanted = ", ".join(f"{name} {words}" for name, words in self._ranges.items())
            given = ", ".join(f"{name}={options[name]}" for name in self._ranges)
            raise ValueError(f"{type(self).__name__} needs {wanted}, not {given}")

    @abstractmethod
    def update(
        self, parameter: Array, gradient: Array, state: State, *args: Any, **options: Any
    ) -> tuple[Array, State]:
        """Returns the new array and the new state; keeps no reference to an argument.

        It changes no argument except the arrays of `state`, which it may write into and return.

        Arrays of float16 and bfloat16 come as float32, and so does the state that it returns: small
        squares, and an `eps` beside them, vanish in shorter dtypes.

        Args:
            parameter: The present array.
            gradient: The gradient, in the same shape and dtype.
            state: The state that this method returned last for this parameter; empty the first
                time.
            args: Nothing is passed here; a subclass leaves this parameter out.
            options: The options of the parameter's group, by the names of `defaults`; a subclass
                without defaults leaves this parameter out.
        """

    def rule(self, options: Mapping[str, Any], first: bool) -> kernels.StepRule | None:
        """Returns the rule by which a kernel does what `update` does; None if there is none.

        With a rule, parameters on a GPU are stepped together, in one launch. A subclass that
        overrides `update` alone has none.

        Args:
            options: The options of the parameters' group.
            first: True if the parameters have no state yet.
        """
        return None

    def steps_rows(self, options: Mapping[str, Any]) -> bool:
        """Returns True if `update` works item by item and changes nothing if the gradient is zero.

        If so, a `RowSparse` gradient steps its rows only. Otherwise it is converted to an array.
        """
        return False

    def initial(self, parameter: Array, options: Mapping[str, Any]) -> State:
        """Returns the state before the first step, for an optimizer that steps rows."""
        return {}

    def step(self, *, skip: bool | Array = False, scale: float | Array = 1.0) -> None:
        """Steps each parameter that has a `grad`; others stay unchanged.

        Args:
            skip: True to change nothing; an array on a GPU is not waited for, see `apply`.
            scale: A factor for the gradients; likewise.
        """
        gradients = {p: p.grad for p in self._groups.read(self) if p.grad is not None}
        self.apply(gradients, skip=skip, scale=scale)

    def apply(
        self,
        gradients: Mapping[Tensor, Gradient],
        *,
        skip: bool | Array = False,
        scale: float | Array = 1.0,
    ) -> None:
        """Steps each of the optimizer's parameters that is in `gradients`; ignores other keys.

        Args:
            gradients: The gradients by parameter (by identity): arrays or Tensors in the
                parameter's shape.
            skip: True to change nothing. An array without axes on the parameters' GPU, as
                `LossScale` passes it, is not waited for: the step is computed and then selected on
                the GPU. Numbers in the state, such as the count of steps, become arrays. The first
                step of `SGD` with dampening, and of a class without a kernel, is waited for.
            scale: A factor for the gradients, or an array without axes on their GPU.

        Raises:
            TypeError: `gradients` is no mapping.
            ValueError: A gradient has another shape or is on another device; no parameter was
                stepped.
        """
        if not isinstance(gradients, Mapping):
            raise TypeError(
                f"apply takes the gradients by parameter, not a {type(gradients).__name__}; write "
                "optimizer.apply(dict(zip(parameters, gradients)))"
            )
        there = skip if is_cupy(skip) else None
        if there is None and skip:
            return
        own = self._own(gradients)
        if self._has_rule:
            own = self._apply_together(own, there, scale)
        as_it_is = type(scale) is float and scale == 1.0
        known: Group | None = None
        for parameter, gradient in own:  # group by group
            group = self._groups.of[parameter]
            if group is not known:
                known, options = group, self._options(group)
            try:
                factored = gradient if as_it_is else _scaled(gradient, scale)
                self._apply_one(parameter, factored, options, there)
            except MemoryError as error:
                words = self._without_memory([parameter])
                error.add_note(f"{words}; parameters before it were stepped, those after it not")
                raise

    def _apply_together(
        self, own: list[tuple[Tensor, Any]], skip: Any, scale: Any
    ) -> list[tuple[Tensor, Any]]:
        """Steps what kernels step, with one launch for each group and dtype; returns the others.

        All or none of these are stepped: if a GPU has no memory left, nothing is written.
        """
        others: list[tuple[Tensor, Any]] = []
        together: dict[tuple[Any, ...], list[tuple[Tensor, Any]]] = {}
        for pair in own:
            parameter, gradient = pair
            dense = type(gradient) is not np.ndarray and is_cupy(gradient)
            if dense and kernels.steps_dtype(dtype := parameter.dtype):
                key = id(self._groups.of[parameter]), dtype, gradient.data.device_id
                together.setdefault(key, []).append(pair)
            else:
                others.append(pair)
        batches: list[tuple[list[tuple[Tensor, Any]], Mapping[str, Any]]] = []
        for pairs in together.values():
            options = self._options(self._groups.of[pairs[0][0]])
            rule = self.rule(options, first=True)
            if rule is None:
                others += pairs
                continue
            differs = skip is not None and rule != self.rule(options, first=False)
            if not (differs and self._skips_first(skip, [p for p, _ in pairs])):
                batches.append((pairs, options))
        if batches:
            self._replace_together(batches, skip, scale)
        return others

    def _skips_first(self, skip: Any, parameters: Iterable[Tensor]) -> bool:
        """Returns True if a step is skipped that is the first one of a parameter; then it waits.

        A state that the GPU selects would not tell the next step that it is the first one.
        """
        return any(p not in self._states for p in parameters) and bool(skip)

    def _replace_together(
        self,
        batches: Sequence[tuple[Sequence[tuple[Tensor, Any]], Mapping[str, Any]]],
        skip: Any,
        scale: Any,
    ) -> None:
        parameters = [p for pairs, _ in batches for p, _ in pairs]
        gradients = [gradient for pairs, _ in batches for _, gradient in pairs]
        batch_of = [b for b, (pairs, _) in enumerate(batches) for _ in pairs]

        def replace(arrays: list[Any]) -> list[Any]:  # under all locks, which guard the states
            alike: dict[tuple[int, bool, Any], list[int]] = {}  # those with one count of steps
            for i, parameter in enumerate(parameters):
                state = self._states.get(parameter, {})
                count = steps_so_far(state)
                key = batch_of[i], not state, count if type(count) is int else id(count)
                alike.setdefault(key, []).append(i)
            plans = [plan(places, arrays) for places in alike.values()]  # these allocate
            stepped = list(arrays)
            for places, (made, states, launch) in zip(alike.values(), plans, strict=True):
                launch()
                for i, array, state in zip(places, made, states, strict=True):
                    stepped[i] = array
                    self._states[parameters[i]] = state
            return stepped

        def plan(
            places: list[int], arrays: list[Any]
        ) -> tuple[list[Any], list[State], Callable[[], None]]:
            _, options = batches[batch_of[places[0]]]
            some = [arrays[i] for i in places]
            states = [self._states.get(parameters[i], {}) for i in places]
            rule = cast("kernels.StepRule", self.rule(options, first=not states[0]))
            xp: Any = namespace(*some)
            wide = computing_dtype(some[0].dtype)  # all have one
            held: list[list[Any]] = []
            exact: list[Any] = []
            made: list[Any] = []
            lacking = places
            try:
                with some[0].device:
                    for i, array, state in zip(places, some, states, strict=True):
                        lacking = [i]
                        known = state or self.initial(array, options)
                        held.append(_held(known, rule.state, array, wide))
                        exact.append(gradients[i].astype(array.dtype, copy=False))
                        made.append(xp.empty(array.shape, array.dtype))
                lacking = places  # for what all need together
                count, launch = kernels.plan_step(
                    rule,
                    some,
                    exact,
                    list(zip(*held, strict=True)),
                    made,
                    steps=steps_so_far(states[0]),
                    skip=skip,
                    scale=scale,
                )
            except MemoryError as error:
                words = self._without_memory([parameters[i] for i in lacking])
                error.add_note(f"{words}; no parameter was stepped")
                raise
            counted: State = {"step": count} if rule.counts else {}
            states = [{**counted, **dict(zip(rule.state, each, strict=True))} for each in held]
            return made, states, launch

        replace_all(parameters, replace)

    def _without_memory(self, parameters: Sequence[Tensor]) -> str:
        """Tells that a step of parameters, or what they need together, has found no memory."""
        wanted = {*map(id, parameters)}
        of = [f"{i} of shape {p.shape}" for i, p in enumerate(self._groups.of) if id(p) in wanted]
        return f"no memory was left for {type(self).__name__}'s step of parameter {', '.join(of)}"

    def _own(self, gradients: Mapping[Tensor, Gradient]) -> list[tuple[Tensor, Any]]:
        """Returns the parameters in `gradients`, each with its array; checks the shapes."""
        own: list[tuple[Tensor, Any]] = []
        for parameter in self._groups.read(self):
            if parameter not in gradients:
                continue
            gradient: Any = gradients[parameter]
            if isinstance(gradient, Tensor):
                gradient = gradient.data
            array = parameter.data
            if gradient.shape != array.shape:
                raise ValueError(
                    f"a gradient of shape {gradient.shape} does not fit a parameter of "
                    f"{array.shape}"
                )
            alike = type(gradient) is type(array)
            if not alike or (type(array) is not np.ndarray and gradient.device != array.device):
                values = gradient.values if is_row_sparse(gradient) else gradient
                check_devices("a step", array, values)
            own.append((parameter, gradient))
        return own

    def _options(self, group: Group) -> dict[str, Any]:
        """Returns the options of `group`, for `update`."""
        options = {}
        for name in self.defaults:
            option = group[name]
            # A NumPy scalar would widen the dtype of products with it.
            options[name] = option.item() if isinstance(option, np.generic) else option
        return options

    def _apply_one(
        self, parameter: Tensor, gradient: Any, options: Mapping[str, Any], skip: Any = None
    ) -> None:
        if type(gradient) is not np.ndarray and is_row_sparse(gradient):
            if self.steps_rows(options):
                if skip is None or not skip:  # the order of the rows is waited for anyway
                    self._apply_rows(parameter, gradient, options)
                return
            gradient = gradient.to_dense()
        differs = skip is not None and not self.initial(parameter.data, options)
        if differs and self._skips_first(skip, [parameter]):
            return

        def replace(array: Array) -> Array:  # under the parameter's lock, which guards the state
            state = self._states.get(parameter, {})
            if skip is not None:
                return self._select(skip, parameter, array, gradient, state, options)
            if array.itemsize < 4:
                updated, after = _updated(self.update, array, gradient, state, options)
            else:  # two calls less
                exact = gradient.astype(array.dtype, copy=False)
                updated, after = self.update(array, exact, state, **options)
            self._states[parameter] = after
            return updated

        replace_data(parameter, replace)

    def _select(
        self,
        skip: Any,
        parameter: Tensor,
        array: Array,
        gradient: Array,
        state: State,
        options: Mapping[str, Any],
    ) -> Array:
        """Returns the stepped array, or `array` if `skip`; keeps the state of the same choice."""
        before = copied(state or self.initial(array, options))
        updated, after = _updated(self.update, array, gradient, state, options)
        xp = namespace(array)

        def chosen(old: Any, new: Any) -> Any:
            new = new if is_array(new) else xp.full((), new)
            return xp.where(skip, old if is_array(old) else xp.full((), old, new.dtype), new)

        self._states[parameter] = {n: chosen(before.get(n, 0), x) for n, x in after.items()}
        selected: Array = chosen(array, updated)
        return selected

    def _apply_rows(
        self, parameter: Tensor, gradient: RowSparse, options: Mapping[str, Any]
    ) -> None:
        exact = gradient.coalesce()
        rows = exact.rows

        def change(array: Array) -> None:
            state = self._states.get(parameter) or self.initial(array, options)
            if self._change_rows(parameter, array, exact, state, options):
                return
            tables: Any = {n: x for n, x in state.items() if np.shape(x) == array.shape}
            parts = {**state, **{name: table[rows] for name, table in tables.items()}}
            array[rows], stepped = _updated(self.update, array[rows], exact.values, parts, options)
            for name, table in tables.items():
                table[rows] = stepped[name]
            self._states[parameter] = {**stepped, **tables}

        change_rows(parameter, change)

    def _change_rows(
        self, parameter: Tensor, array: Any, exact: RowSparse, state: State, options: Any
    ) -> bool:
        """Steps rows by one launch and returns True, if a kernel does so."""
        rule = self.rule(options, first=False) if self._has_rule and is_cupy(array) else None
        if rule is None or not kernels.steps_dtype(array.dtype) or not array.flags.c_contiguous:
            return False
        held = _held(state, rule.state, array, computing_dtype(array.dtype))
        steps = steps_so_far(state)
        values = exact.values.astype(array.dtype, copy=False)
        count = kernels.step_rows(rule, array, values, held, exact.rows, steps)
        counted = {"step": count} if rule.counts else {}
        self._states[parameter] = {**counted, **dict(zip(rule.state, held, strict=True))}
        return True

    def zero_grad(self) -> None:
        """Sets the `grad` of every parameter to None."""
        for parameter in self._groups.read(self):
            parameter.grad = None

    def __repr__(self) -> str:
        lines = []
        for group in self.param_groups:
            options = [f"{k}={_said(x)}" for k, x in group.items() if k != "params"]
            lines.append(", ".join([f"  {len(group['params'])} parameters", *options]))
        return "\n".join([f"{type(self).__name__}(", *lines, ")"])

    def state_dict(self) -> dict[str, Any]:
        """Returns copies of the optimizer's state, in PyTorch's layout.

        Returns:
            As `state` the state of each parameter by its number; as `param_groups` the options of
            each group, with the numbers of its `params`.
        """
        number = {parameter: i for i, parameter in enumerate(self._groups.read(self))}
        groups = [
            {**group, "params": [number[p] for p in group["params"]]} for group in self.param_groups
        ]
        state = {number[p]: self._saved(p) for p in number if p in self._states}
        return {"state": state, "param_groups": groups}

    def _saved(self, parameter: Tensor) -> dict[str, Any]:
        with steady(parameter):  # another thread may step rows of this parameter
            return copied(self._states[parameter])

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores what `state_dict()` returned, for the same parameters in the same groups.

        Arrays are copied, to the dtype and device of their parameter, but float16 and bfloat16 to
        float32. All checks come before the first change.

        Raises:
            TypeError: The state is no mapping.
            ValueError: Groups, options or shapes differ, or the state is of something else; the
                message lists the differences.
        """
        who = type(self).__name__
        groups, states = saved_parts(who, state_dict)
        params = tuple(self._groups.read(self))
        shapes = {i: parameter.shape for i, parameter in enumerate(params)}
        check_saved_state(who, self.param_groups, self.defaults, shapes, groups, states)
        for theirs in groups:
            self.check(theirs)
        found: dict[Tensor, State] = {
            p: restored(states[i], p) for i, p in enumerate(params) if i in states
        }
        for own, theirs in zip(self.param_groups, groups, strict=True):
            own.update({name: x for name, x in theirs.items() if name != "params"})
        self._states = found


def _is_in_range(words: str, option: Any) -> bool:
    try:
        return _IN_RANGE[words](option)
    except TypeError:  # no number
        return False


def _said(option: Any) -> str:
    return f"{option:g}" if isinstance(option, float) else f"{option}"


def _scaled(gradient: Any, scale: Any) -> Any:
    with np.errstate(over="ignore", invalid="ignore"):  # infinities and NaNs stay what they are
        return gradient.astype(computing_dtype(gradient.dtype), copy=False) * scale


def _updated(
    update: Callable[..., tuple[Array, State]],
    array: Array,
    gradient: Any,
    state: State,
    options: Mapping[str, Any],
) -> tuple[Array, State]:
    """Returns what `update` returns, computed in float32 if the array has a shorter dtype."""
    dtype = computing_dtype(array.dtype)
    exact = gradient.astype(dtype, copy=False)
    updated, after = update(array.astype(dtype, copy=False), exact, state, **options)
    return updated.astype(array.dtype, copy=False), after


def _held(state: Mapping[str, Any], names: Iterable[str], like: Any, dtype: Any) -> list[Any]:
    """Returns `held_arrays` in C order and in `dtype`, as kernels need them."""
    held = []
    for name in names:
        x = state.get(name)
        if x is None:
            x = namespace(like).zeros(like.shape, dtype)
        exact = x.dtype == dtype and x.flags.c_contiguous
        held.append(x if exact else x.astype(dtype, order="C"))
    return held


# -- updates in blocks that stay in a core's cache -----------------------------------------------

BLOCK_BYTES: Final = 256 * 1024
"""Bytes of each array in one block. A step with momentum of 1.8 million float32 numbers took 1.9 ms
without blocks, and 1.5, 1.4, 1.3 and 1.3 ms with blocks of 64, 128, 256 and 512 KiB. An update has
four to six arrays, and a core's second-level cache is often 1 to 2 MiB."""


def in_blocks(*arrays: Any) -> Iterable[tuple[Any, ...]]:
    """Yields views of the same rows of each array, block after block; small arrays in one block.

    An update is several passes over its arrays. Block by block, all passes but the first find their
    data in the cache, and temporary arrays are as small as a block. Arrays on a GPU are not split,
    because each pass would be one more launch.

    Args:
        arrays: Arrays of one shape.

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
    """Returns the named arrays of `state`; zeros like `like` where there is none yet."""
    return {
        name: state[name] if name in state else namespace(like).zeros_like(like) for name in names
    }


def steps_so_far(state: Mapping[str, Any]) -> Any:
    """Returns the steps in `state`: an int, or an array on a GPU if one may have been skipped."""
    step = state.get("step", 0)
    if type(step) is int:
        return step
    return step if type(step) is not np.ndarray and is_array(step) else int(step)
