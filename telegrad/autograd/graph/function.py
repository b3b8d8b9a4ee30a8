"""`Function`: an operation whose gradient rule the user writes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, final

import numpy as np

from telegrad.arrays import as_array, current_place, is_inexact
from telegrad.autograd.graph.grad_mode import ENABLED, GradMode, Watched
from telegrad.autograd.graph.node import Value
from telegrad.autograd.graph.operation import SavedValue, SavingNode
from telegrad.autograd.graph.plan import fit
from telegrad.autograd.tensor.tensor import Gradients, Tensor, attach, edge_of
from telegrad.errors import AutogradError

__all__ = ["Function", "FunctionContext"]


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
        node = _FunctionNode(cls, ctx, args, values, outputs) if any(needs) else None
        if node is not None and isinstance(mode, Watched):
            mode.recorded(node, plain, [value.array for value in outputs])
        constant = {id(x) for x in ctx._constant}
        results = tuple(
            attach(
                value.array,
                None if id(value.array) in constant or not is_inexact(value.array.dtype) else node,
                output,
                memory=value,
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


@final
class _FunctionNode(SavingNode):
    """One recorded call of a user's `Function`."""

    __slots__ = ("_ctx", "_function", "_inputs")

    def __init__(
        self,
        function: type[Function],
        ctx: FunctionContext,
        args: Sequence[Any],
        values: Sequence[Value | None],
        outputs: Sequence[Value],
    ) -> None:
        super().__init__(
            [edge_of(x) if isinstance(x, Tensor) else None for x in args], num_outputs=len(outputs)
        )
        self._function = function
        self._ctx = ctx
        self._inputs = [None if v is None else (v.array.shape, v.array.dtype) for v in values]
        self._saved = [self._save(x, values, outputs) for x in ctx._to_save]
        ctx._to_save = ()
        if outputs and (place := current_place(outputs[0].array)) is not None:
            self._made_on = (place,)

    def _save(
        self, x: Any, values: Sequence[Value | None], outputs: Sequence[Value]
    ) -> tuple[Any, int | None]:
        for i, value in enumerate(values):
            if value is not None and value.array is x:
                return SavedValue(value, self.edges[i]), None
        for output, held in enumerate(outputs):
            if held.array is x:
                return SavedValue(held, None), output
        return x, None

    @property
    def name(self) -> str:
        """The name of the user's class."""
        return self._function.__name__

    def backward(self, gradients: Gradients) -> Gradients:
        """Runs the user's rule.

        Raises:
            AutogradError: The rule returned too many or too few gradients, or a wrong shape.
        """
        saved = self._saved
        if saved is None:
            saved = self.restore_saved()
        recorded = any(isinstance(g, Tensor) for g in gradients)
        ctx = self._context([self._unpack(*item, recorded=recorded) for item in saved])
        returned = self._function.backward(ctx, *gradients)
        results = returned if isinstance(returned, tuple) else (returned,)
        if len(results) != len(self.edges):
            raise AutogradError(
                f"backward of {self.name} returned {len(results)} gradients for "
                f"{len(self.edges)} arguments; return one per argument, None where there is none"
            )
        return tuple(self._fit(i, x, recorded=recorded) for i, x in enumerate(results))

    def _context(self, unpacked: list[Any]) -> FunctionContext:
        # Each run has its own context, as two threads may run this node at once.
        ctx = FunctionContext(self._ctx.needs_input_grad)
        ctx.__dict__.update(self._ctx.__dict__)
        ctx._unpacked = tuple(unpacked)
        return ctx

    def _unpack(self, value: Any, output: int | None, *, recorded: bool) -> Any:
        if not isinstance(value, SavedValue):
            return value
        edge = None if output is None else (self, output)
        return value.unpack(self.name, recorded=recorded, own=edge)

    def _fit(self, i: int, x: Any, *, recorded: bool) -> Any:
        meta = self._inputs[i]
        if self.edges[i] is None or meta is None or x is None:
            return None
        if isinstance(x, Tensor):
            x = x if recorded else x.data
        else:
            x = Tensor(np.asarray(x) if np.isscalar(x) else x) if recorded else as_array(x)
        return fit(x, *meta)

    def saved_leaves(self) -> tuple[Any, ...]:
        """Returns one entry per saved value: the value if a leaf holds it, else None."""
        return tuple(
            [x.of_leaf() if isinstance(x, SavedValue) else None for x, _ in self._saved or ()]
        )
