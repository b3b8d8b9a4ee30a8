"""`Operation`: a forward function over arrays and one gradient rule per differentiable argument.

    multiply = Operation("multiply", np.multiply, "a b",
                         a=lambda g, b: g * b,
                         b=lambda g, a: g * a)

A rule is written in terms of operations and operators, so it computes with arrays and, under
`create_graph`, with Tensors. Its first parameter is the gradient of the result; each further one
names what it needs:

    an argument (`a`)    its value, saved when recorded
    `y`                  the result, saved
    `shape`              the shape of the argument that this rule is for
    a keyword (`axis`)   as it was given, or its default

Only what the rules of the arguments that need a gradient name is saved, as the array that the
Tensor held at that time. A rule may return more axes or another dtype than its argument has
(broadcasting, promotion): the node sums and casts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np

from telegrad.arrays import array_beside, as_array, check_devices, is_array, namespace
from telegrad.autograd.grad_mode import is_grad_enabled
from telegrad.autograd.node import Edge, Gradients, Node
from telegrad.autograd.tensor import Tensor, attach
from telegrad.autograd.value import Value, Version
from telegrad.errors import AutogradError
from telegrad.types import Array, Shape

__all__ = ["Operation", "OperationNode", "SavedValue", "astype", "broadcast_to", "fit", "sum_to"]


@final
class SavedValue:
    """An array as it was when recorded, and how to notice that it was changed since."""

    __slots__ = ("_array", "_count", "_edge", "_version")

    def __init__(self, value: Value, edge: Edge | None) -> None:
        self._array = value.array
        self._version: Version = value.version
        self._count = value.version.count
        self._edge = edge

    def unpack(self, operation: str, *, recorded: bool, own: Edge | None = None) -> Any:
        """Returns the array, or if `recorded` a Tensor at its place in the graph.

        Args:
            operation: Who saved it, for the message.
            recorded: Whether operations on it are to be recorded.
            own: Its place, if it is an output of the very node that saved it (which would be
                a reference cycle if it were kept).

        Raises:
            AutogradError: It was changed in place.
        """
        if self._version.count != self._count:
            raise AutogradError(
                f"a value of shape {self._array.shape} that {operation!r} saved for its gradient "
                f"was changed in place since (version {self._version.count}, saved at "
                f"{self._count}); write t = t + x instead of t += x, or assign t.data"
            )
        if not recorded:
            return self._array
        edge = self._edge if own is None else own
        if edge is None:
            return attach(self._array, None, version=self._version)
        return attach(self._array, edge.node, edge.output, version=self._version)


@final
class Operation:
    """A function over arrays and Tensors that is recorded; arrays alone give an array.

    Args:
        name: What messages call it.
        forward: Computes with arrays; extra parameters are keywords.
        arguments: The names of its positional arguments, `a b`; `*parts` for any number of them.
        view: Whether the result may share the first argument's memory.
        keywords: The defaults of its keywords.
        rules: The gradient rule by argument name. An argument without a rule is never
            differentiated. With `*parts` the one rule also may name `i`, which part it is for,
            and `shapes`, those of all parts.
    """

    def __init__(
        self,
        name: str,
        forward: Callable[..., Any],
        arguments: str,
        *,
        view: bool = False,
        keywords: Mapping[str, Any] | None = None,
        **rules: Callable[..., Any],
    ) -> None:
        self.name = name
        self._forward = forward
        self._variadic = arguments.startswith("*")
        self._arguments = tuple(arguments.lstrip("*").split())
        self._view = view
        self._keywords = dict(keywords or {})
        known = {*self._arguments, *self._keywords, "y", "shape", "i", "shapes"}
        if len(known) < 4 + len(self._arguments) + len(self._keywords):
            raise ValueError(f"{name!r} has two meanings for one name")
        self._rules = {name: (rule, _needs(rule, known)) for name, rule in rules.items()}
        if not rules.keys() <= set(self._arguments):
            raise ValueError(f"{name!r} has rules for unknown arguments: {sorted(rules)}")

    def __call__(self, *inputs: Any, **keywords: Any) -> Any:
        """Computes, and records where grad mode is on and a Tensor needs a gradient.

        Raises:
            TypeError: An argument too many or too few, or a keyword that has no rule.
            ValueError: The arrays are on different devices.
            AutogradError: What would be recorded is complex, or only an argument without a rule
                needs a gradient.
        """
        if keywords and not keywords.keys() <= self._keywords.keys():
            unknown = ", ".join(sorted(keywords.keys() - self._keywords.keys()))
            raise TypeError(f"{self.name} of tensors does not take {unknown}")
        if not self._variadic and len(inputs) != len(self._arguments):
            raise TypeError(
                f"{self.name} takes {len(self._arguments)} arguments, {len(inputs)} were given"
            )
        values = [_value_of(x, inputs) for x in inputs]
        if len(inputs) == 2 and inputs[0] is inputs[1]:
            values[1] = values[0]  # x * x is a square, also while another thread replaces x.data
        arrays = [x.array if type(x) is Value else x for x in values]
        try:
            result = self._forward(*arrays, **keywords)
        except (TypeError, ValueError, AttributeError):  # CuPy's words on an array of NumPy's
            check_devices(self.name, *arrays)
            raise
        tensors = [x for x in inputs if isinstance(x, Tensor)]
        if not tensors:
            return result
        if isinstance(result, np.generic):
            result = np.asarray(result)
        version, is_view = self._memory(values[0], result)
        held = Value(result, version)
        node = None
        if any(x.requires_grad for x in tensors) and is_grad_enabled():
            node = self._record(inputs, values, held, keywords)
        return attach(result, node, version=held.version, is_view=is_view)

    def _memory(self, source: Any, result: Array) -> tuple[Version | None, bool]:
        if not self._view or type(source) is not Value:
            return None, False
        if not namespace(result).may_share_memory(source.array, result):
            return None, False
        return source.version, True

    def _record(
        self, inputs: tuple[Any, ...], values: list[Any], result: Value, keywords: dict[str, Any]
    ) -> OperationNode | None:
        if result.array.dtype.kind == "c":
            raise AutogradError(
                f"{self.name} of a tensor that needs a gradient gave {result.array.dtype}, and "
                "gradients are of real numbers; pass t.detach()"
            )
        edges: list[Edge | None] = []
        needed: set[str] = set()
        for i, x in enumerate(inputs):
            name = self._argument(i)
            edge = x.edge if isinstance(x, Tensor) and name in self._rules else None
            edges.append(edge)
            if edge is not None:
                needed.update(self._rules[name][1])
        if not any(edge is not None for edge in edges):
            names = ", ".join(sorted(set(self._arguments) - self._rules.keys()))
            raise AutogradError(
                f"{self.name} has no gradient with respect to {names}; pass t.detach()"
            )
        saved: dict[str, Any] = {}
        for i, value in enumerate(values):
            name = self._argument(i)
            if name in needed:
                saved[name] = SavedValue(value, edges[i]) if type(value) is Value else value
        if "y" in needed:
            saved["y"] = SavedValue(result, None)
        metadata = tuple([_metadata(value) for value in values])
        return OperationNode(self, edges, saved, metadata, {**self._keywords, **keywords})

    def _argument(self, i: int) -> str:
        return self._arguments[0 if self._variadic else i]

    def rule(self, i: int) -> tuple[Callable[..., Any], tuple[str, ...]]:
        """Returns the rule of input `i` and what it needs besides the gradient."""
        return self._rules[self._argument(i)]

    def __repr__(self) -> str:
        return f"<operation {self.name}>"


@final
class OperationNode(Node):
    """One recorded call of an `Operation`."""

    __slots__ = ("_keywords", "_metadata", "_operation", "_saved")

    def __init__(
        self,
        operation: Operation,
        edges: list[Edge | None],
        saved: dict[str, Any],
        metadata: tuple[tuple[Shape, np.dtype[Any]] | None, ...],
        keywords: dict[str, Any],
    ) -> None:
        super().__init__(edges)
        self._operation = operation
        self._saved: dict[str, Any] | None = saved
        self._metadata = metadata
        self._keywords = keywords

    @property
    def name(self) -> str:
        """The operation's name."""
        return self._operation.name

    def backward(self, gradients: Gradients) -> Gradients:
        """Runs the rule of each input that needs a gradient."""
        gradient = gradients[0]
        saved = self._saved
        if saved is None:
            raise AutogradError(
                f"what {self.name!r} saved for its gradient was freed by an earlier backward; "
                "pass retain_graph=True to that one, or compute the forward again"
            )
        recorded = isinstance(gradient, Tensor)
        unpacked: dict[str, Any] = {}
        results: list[Any] = []
        for i, edge in enumerate(self.edges):
            meta = self._metadata[i]
            if edge is None or meta is None:
                results.append(None)
                continue
            rule, names = self._operation.rule(i)
            for name in names:
                if name in saved and name not in unpacked:
                    unpacked[name] = self._unpack(name, saved[name], recorded)
            needs = [self._find(name, i, unpacked) for name in names]
            results.append(fit(rule(gradient, *needs), *meta))
        return tuple(results)

    def _unpack(self, name: str, value: Any, recorded: bool) -> Any:
        if not isinstance(value, SavedValue):
            return value
        own = Edge(self, 0) if name == "y" else None
        return value.unpack(self.name, recorded=recorded, own=own)

    def _find(self, name: str, i: int, unpacked: dict[str, Any]) -> Any:
        if name in unpacked:
            return unpacked[name]
        if name in self._keywords:
            return self._keywords[name]
        if name == "i":
            return i
        if name == "shapes":
            return [meta[0] if meta is not None else None for meta in self._metadata]
        meta = self._metadata[i]
        return meta[0] if meta is not None else None

    def release(self) -> None:
        """Frees the saved values, if there are any."""
        if self._saved:
            self._saved = None


def _needs(rule: Callable[..., Any], known: set[str]) -> tuple[str, ...]:
    names = tuple(inspect.signature(rule).parameters)[1:]
    if not known.issuperset(names):
        raise ValueError(f"a rule needs what its operation has not: {set(names) - known}")
    return names


def _metadata(value: Any) -> tuple[Shape, np.dtype[Any]] | None:
    array = value.array if type(value) is Value else value
    return (array.shape, array.dtype) if is_array(array) else None


def _value_of(x: Any, inputs: Sequence[Any]) -> Any:
    if isinstance(x, Tensor):
        return x.value
    return _array_of(x, inputs) if isinstance(x, (list, tuple)) else x


def _array_of(numbers: Any, inputs: Sequence[Any]) -> Array:
    """Makes an array of a list, on the device of the first input that has one."""
    for x in inputs:
        if isinstance(x, Tensor):
            return array_beside(numbers, x.data)
        if is_array(x):
            return array_beside(numbers, x)
    return np.asarray(numbers)


def fit(gradient: Any, shape: Shape, dtype: np.dtype[Any]) -> Any:
    """Returns `gradient` summed over what was broadcast, in `dtype`.

    Raises:
        AutogradError: It does not have such a shape.
    """
    if isinstance(gradient, np.generic):
        gradient = np.asarray(gradient)
    if gradient.shape != shape:
        gradient = sum_to(gradient, to=shape)
    if gradient.dtype != dtype:
        gradient = astype(gradient, dtype=dtype)
    return gradient


def _sum_to(a: Array, *, to: Shape) -> Array:
    extra = a.ndim - len(to)
    if extra < 0 or any(k not in (1, n) for k, n in zip(to, a.shape[extra:], strict=True)):
        raise AutogradError(f"a gradient of shape {a.shape} does not fit an input of shape {to}")
    axes = [extra + k for k, n in enumerate(to) if n == 1]
    total: Array = a.sum(axis=(*range(extra), *axes))
    return as_array(total).reshape(to)


def _broadcast_to(a: Any, *, to: Shape) -> Array:
    broadcast: Array = namespace(a).broadcast_to(a, to)
    return broadcast


def _astype(a: Any, *, dtype: Any) -> Array:
    return as_array(a).astype(dtype)


sum_to = Operation(
    "sum_to",
    _sum_to,
    "a",
    keywords={"to": ()},
    a=lambda g, shape: broadcast_to(g, to=shape),
)
broadcast_to: Operation = Operation(
    "broadcast_to", _broadcast_to, "a", view=True, keywords={"to": ()}, a=lambda g: g
)
astype = Operation("astype", _astype, "a", keywords={"dtype": None}, a=lambda g: g)
