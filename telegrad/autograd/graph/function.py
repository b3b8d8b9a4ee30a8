"""`Function`: an operation whose gradient rule the user writes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final, final

import numpy as np

from telegrad.arrays import as_array, current_place, is_inexact
from telegrad.autograd.graph.call_node import CallNode
from telegrad.autograd.graph.grad_mode import ENABLED, GradMode, Watched
from telegrad.autograd.graph.node import Value
from telegrad.autograd.graph.plan import Plan
from telegrad.autograd.tensor.tensor import Gradients, Tensor, edge_of, made_of
from telegrad.errors import AutogradError

_NO_OPTIONS: Final[Mapping[str, Any]] = MappingProxyType({})


@final
class FunctionContext:
    """The values that one call of a `Function` hands from its forward to its backward.

    The forward may set further attributes for values that are no arrays.

    Attributes:
        needs_input_grad: One bool per argument of `apply`: True if its gradient is used.
    """

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self._to_save: tuple[Any, ...] = ()
        self._unpacked: tuple[Any, ...] | None = None
        self._constant: list[Any] = []

    def save_for_backward(self, *values: Any) -> None:
        """Keeps inputs, outputs or intermediate values for the backward.

        The backward raises if a saved input or output was changed in place.
        """
        self._to_save = values

    def mark_non_differentiable(self, *outputs: Any) -> None:
        """Marks outputs that need no gradient."""
        self._constant.extend(outputs)

    @property
    def saved_values(self) -> tuple[Any, ...]:
        """The saved values: arrays; under `create_graph` Tensors.

        Raises:
            AutogradError: The property is read outside `backward`.
        """
        if self._unpacked is None:
            raise AutogradError("saved values are there inside backward only")
        return self._unpacked


class Function(ABC):
    """An operation whose gradient rule the user writes; `apply` calls it.

    `forward` computes with arrays and is not recorded. `backward` receives arrays, under
    `create_graph` Tensors. A `backward` made of operators and `numpy` functions works with both.

    >>> class Cube(Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         ctx.save_for_backward(x)
    ...         return x**3
    ...
    ...     @staticmethod
    ...     def backward(ctx, gradient):
    ...         (x,) = ctx.saved_values
    ...         return gradient * 3 * x**2
    >>> x = Tensor(2.0, requires_grad=True)
    >>> Cube.apply(x).backward()
    >>> x.grad.item()
    12.0
    """

    @staticmethod
    @abstractmethod
    def forward(ctx: FunctionContext, *args: Any) -> Any:
        """Returns an array or a tuple of arrays; Tensor arguments arrive as arrays."""

    @staticmethod
    @abstractmethod
    def backward(ctx: FunctionContext, *gradients: Any) -> Any:
        """Returns the gradients of the arguments of `forward`: a tuple, or one gradient alone.

        An entry is None where an argument has no gradient. `gradients` has one entry per output,
        None for an output that no gradient reached.
        """

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Calls `forward` and records the call.

        Args:
            args: The arguments of `forward`. Only Tensors among them are differentiated.

        Returns:
            A Tensor, or a tuple of Tensors if `forward` returned a tuple.

        Raises:
            TypeError: The class lacks `forward` or `backward`.
        """
        if cls.__abstractmethods__:
            raise TypeError(
                f"{cls.__name__} has no {' and no '.join(sorted(cls.__abstractmethods__))}"
            )
        mode = ENABLED.get()
        needs = tuple(bool(mode) and isinstance(x, Tensor) and x.requires_grad for x in args)
        ctx = FunctionContext(needs)
        values = [x._value if isinstance(x, Tensor) else None for x in args]
        plain = [x if value is None else value.array for x, value in zip(args, values, strict=True)]
        with GradMode(enabled=False):
            returned = cls.forward(ctx, *plain)
        several = isinstance(returned, tuple)
        outputs = _output_values(returned if several else (returned,), values)
        node = _node(cls, ctx, args, values, outputs) if any(needs) else None
        if node is not None and isinstance(mode, Watched):
            mode.recorded(node, plain, [value.array for value in outputs])
        constant = {id(x) for x in ctx._constant}
        results = tuple(
            made_of(
                Value(value.array, value),
                (node, output)
                if node and id(value.array) not in constant and is_inexact(value.array.dtype)
                else None,
            )
            for output, value in enumerate(outputs)
        )
        return results if several else results[0]


def _output_values(returned: Sequence[Any], inputs: Sequence[Value | None]) -> list[Value]:
    known = {id(value.array): value for value in inputs if value is not None}
    values = []
    for output in returned:
        array = output.data if isinstance(output, Tensor) else as_array(output)
        values.append(known.get(id(array)) or Value(array))
    return values


def _node(
    function: type[Function],
    ctx: FunctionContext,
    args: Sequence[Any],
    values: Sequence[Value | None],
    outputs: Sequence[Value],
) -> CallNode:
    """Returns the node of one call: a plan with one rule, which finds the gradients of all inputs.

    A saved value that is neither input nor output stands in a list of its own.
    """
    node = CallNode([edge_of(x) if isinstance(x, Tensor) else None for x in args])
    node.num_outputs = len(outputs)
    saved: list[Any] = []
    places: list[int] = []
    for x in ctx._to_save:
        place, value = _place_of(x, values, outputs)
        saved.append([x] if value is None else (value, value.version))
        places.append(place)
    ctx._to_save = ()
    first = ctx.needs_input_grad.index(True)
    rule = partial(_gradients, function, ctx, first)
    # Positional, as this runs for each call: its name, `several`, what is saved, and the one rule.
    every: Any = range(len(saved))
    rules = ((first, rule, every, True),)
    node._plan = Plan(function.__name__, True, places, (), rules, _NO_OPTIONS, False)
    node._saved = saved
    node._inputs = [None if v is None else (v.array.shape, v.array.dtype) for v in values]
    node._options = _NO_OPTIONS
    node._conjugated = False
    if outputs and (stream := current_place(outputs[0].array)) is not None:
        node._made_on = (stream,)
    return node


def _place_of(
    x: Any, values: Sequence[Value | None], outputs: Sequence[Value]
) -> tuple[int, Value | None]:
    """Returns the place of a saved value, as in a plan, and its Value; None if it is neither."""
    for i, value in enumerate(values):
        if value is not None and value.array is x:
            return i, value
    for k, output in enumerate(outputs):
        if output.array is x:
            return -1 - k, output
    return -1, None


def _gradients(
    function: type[Function], first: FunctionContext, i: int, gradients: Gradients, *saved: Any
) -> list[Any]:
    """Runs the user's rule, and returns the gradients of input `i` and of those that follow.

    Raises:
        AutogradError: The rule returned too many or too few gradients.
    """
    # Each run has its own context, as two threads may run a node at once.
    ctx = FunctionContext(first.needs_input_grad)
    ctx.__dict__.update(first.__dict__)
    ctx._unpacked = tuple(x[0] if type(x) is list else x for x in saved)
    returned = function.backward(ctx, *gradients)
    results = returned if isinstance(returned, tuple) else (returned,)
    count = len(first.needs_input_grad)
    if len(results) != count:
        raise AutogradError(
            f"backward of {function.__name__} returned {len(results)} gradients for "
            f"{count} arguments; return one per argument, None where there is none"
        )
    recorded = any(isinstance(g, Tensor) for g in gradients)
    return [
        _as_recorded(x, recorded=recorded) if needed else None
        for x, needed in zip(results[i:], first.needs_input_grad[i:], strict=True)
    ]


def _as_recorded(x: Any, *, recorded: bool) -> Any:
    """Returns a gradient as a Tensor if the backward is recorded, else as an array."""
    if x is None:
        return None
    if isinstance(x, Tensor):
        return x if recorded else x.data
    return Tensor(np.asarray(x) if np.isscalar(x) else x) if recorded else as_array(x)
