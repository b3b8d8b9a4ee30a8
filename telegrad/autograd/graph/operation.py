"""`Operation`: a forward function over arrays and one gradient rule per differentiable argument.

    multiply = Operation("multiply", np.multiply, "a b",
                         a=lambda g, b: g * b,
                         b=lambda g, a: g * a)

A rule is written in terms of operations and operators, so it computes with arrays and, under
`create_graph`, with Tensors. Its first parameter is the gradient of the result; each further one
names what it needs:

    an argument (`a`)    its value, saved when recorded
    `y`                  the result, saved; with several outputs, each by its own name
    `shape`              the shape of the argument that this rule is for
    an option (`axis`)   as it was given, or its default

A call saves only values that rules name, and only rules of arguments that need a gradient count. A
saved value is the array that the Tensor held at that time. A rule may return more axes or another
dtype than its argument has (broadcasting, promotion): the node sums and casts. A rule may return
None for no gradient, or a list with the gradients of its argument and of those that follow it, where
one computation finds several.

With several outputs `g` is a tuple with one gradient per output, None for an output without one.

Complex numbers: the gradient of a real loss with respect to z = x + iy is dL/dx + i dL/dy, the
direction in which the loss rises most (PyTorch's convention; JAX's is its conjugate).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, final

import numpy as np

from telegrad.arrays import (
    array_beside,
    check_devices,
    check_supported,
    current_place,
    is_array,
    is_inexact,
    is_sparse,
    namespace,
    takes_ufuncs,
)
from telegrad.autograd.graph.autocast import CASTING, PRECISION
from telegrad.autograd.graph.grad_mode import ENABLED
from telegrad.autograd.graph.node import Edge, Node, Value
from telegrad.autograd.graph.parameters import positional_names, signature_of
from telegrad.autograd.graph.plan import Plan, compile_rule, fit
from telegrad.autograd.tensor.tensor import AccumulateGrad, Gradients, Tensor, attach
from telegrad.errors import AutogradError

if TYPE_CHECKING:
    from typing import Self

    from telegrad.autograd.graph.plan import Need, RuleOfInput
    from telegrad.types import Shape

__all__ = [
    "Operation",
    "OperationNode",
    "SavedValue",
    "SavingNode",
    "Segment",
    "is_leaf",
    "refuse_changed",
]


# -- `SavingNode`: a node with saved values ------------------------------------------------------


class Segment(ABC):
    """A part of the forward that `recompute` computes again in the backward."""

    @abstractmethod
    def compute(self) -> None:
        """Gives its nodes the values that they saved in the forward; only once."""

    @abstractmethod
    def replace(self, nodes: Mapping[Node | None, SavingNode]) -> None:
        """Replaces its nodes: the keys of `nodes` are the present ones, the values the new ones."""


class SavingNode(Node):
    """A node that keeps the values its rule needs until it is released.

    `recompute` drops saved values at once; a segment computes them again.
    """

    __slots__ = ("_saved", "_segment")

    _saved: list[Any] | None
    _segment: Segment  # unset in all nodes but those of checkpoints

    def release(self) -> None:
        """Frees the saved values, if there are any."""
        if self._saved:
            self._saved = None

    @abstractmethod
    def saved_leaves(self) -> tuple[Any, ...]:
        """Returns one entry per saved value: the value of a leaf, else None.

        A segment that computes again must find the values of leaves unchanged.
        """

    @property
    def segment(self) -> Segment | None:
        """The segment that computes the saved values again; None if the node kept them."""
        return getattr(self, "_segment", None)

    def drop_saved(self, segment: Segment) -> None:
        """Drops the saved values; `segment` computes them again."""
        self._saved = None
        self._segment = segment

    def take_saved(self, other: Self) -> None:
        """Takes over the saved values of `other`, the same operation computed again."""
        self._saved = other._saved
        segment = other.segment
        if segment is not None:
            self._segment = segment

    def restore_saved(self) -> list[Any]:
        """Returns the saved values after the segment has computed them again.

        Raises:
            AutogradError: The values were freed: there is no segment, or it has computed before.
        """
        segment = self.segment
        if segment is not None:
            segment.compute()
        if self._saved is None:
            raise AutogradError(
                f"what {self.name!r} saved for its gradient was freed by an earlier backward; "
                "pass retain_graph=True to that one, or compute the forward again"
            )
        return self._saved


def is_leaf(edge: Edge | None) -> bool:
    """Returns True if `edge` leads to a leaf."""
    return edge is not None and isinstance(edge[0], AccumulateGrad)


# -- `SavedValue`: a saved array with its version ------------------------------------------------


@final
class SavedValue:
    """A saved array with its version, which shows a later change in place."""

    __slots__ = ("_edge", "_value", "_version")

    def __init__(self, value: Value, edge: Edge | None) -> None:
        self._value = value
        self._version = value.version
        self._edge = edge

    def unpack(self, operation: str, *, recorded: bool, own: Edge | None = None) -> Any:
        """Returns the array, or if `recorded` a Tensor at its place in the graph.

        Args:
            operation: The name of the operation that saved it, for the message.
            recorded: True if operations on the result shall be recorded.
            own: The edge of the value if it is an output of the node that saved it. The node does
                not store this edge, which would be a reference cycle.

        Raises:
            AutogradError: The array was changed in place.
        """
        value = self._value
        if value.version != self._version:
            what = "a value" if own is None else "the result"
            refuse_changed(value, self._version, operation, what)
        if not recorded:
            return value.array
        edge = self._edge if own is None else own
        if edge is None:
            return attach(value.array, None, memory=value)
        return attach(value.array, *edge, memory=value)

    def of_leaf(self) -> tuple[Value, int] | None:
        """Returns the value and the saved version if a leaf holds the value, else None."""
        return (self._value, self._version) if is_leaf(self._edge) else None


def refuse_changed(value: Value, version: int, operation: str, what: str) -> NoReturn:
    """Raises an error: `what`, which `operation` saved at `version`, was changed in place.

    Raises:
        AutogradError: Always.
    """
    raise AutogradError(
        f"{what} of shape {value.array.shape} that {operation!r} saved for its gradient "
        f"was changed in place since (version {value.version}, saved at {version}); "
        "write t = t + x instead of t += x, or assign t.data"
    )


# -- `OperationNode`: one recorded call of an `Operation` ----------------------------------------


@final
class OperationNode(SavingNode):
    """One recorded call of an `Operation`, which creates the node and sets its attributes.

    `_saved` is in the plan's order. An entry is a Value with its version for a Tensor; any other
    argument stands there as it was given.

    Attributes:
        _operation: The operation that was called.
        _plan: The values to save and the rules to run.
        _inputs: Shape and dtype of each input that a rule is for, at the input's index.
        _options: The options of the call, as given.
        _conjugated: True if the rules compute with conjugates.
    """

    __slots__ = ("_conjugated", "_inputs", "_operation", "_options", "_plan")

    _operation: Operation
    _plan: Plan
    _inputs: list[tuple[Shape, np.dtype[Any]]]
    _options: Mapping[str, Any]
    _conjugated: bool
    splits: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The operation's name."""
        return self._operation.name

    def backward(
        self, gradients: Gradients, rules: Iterable[RuleOfInput] | None = None
    ) -> Gradients:
        """Runs the rule of each input that needs a gradient, or some of these rules."""
        saved = self._saved
        if saved is None:
            saved = self.restore_saved()
        if self._operation.several:
            gradient: Any = gradients
            recorded = any(isinstance(g, Tensor) for g in gradients)
        else:
            gradient = gradients[0]
            recorded = type(gradient) is not np.ndarray and isinstance(gradient, Tensor)
        if self._conjugated:
            gradient = _conjugate(gradient)
        unpacked: list[Any] = []
        for entry in saved:
            if type(entry) is tuple:
                value, version = entry
                if (value.counter or value).changes != version:
                    refuse_changed(value, version, self.name, self._what(len(unpacked)))
                entry = self._recorded(len(unpacked), value) if recorded else value.array
            unpacked.append(entry)
        results: list[Any] = [None] * len(self.edges)
        inputs: list[Any] = self._inputs
        for i, rule, needs, only, pick in self._plan.rules if rules is None else rules:
            if results[i] is not None:
                continue
            shape, dtype = inputs[i]
            if only is not None:
                result = rule(gradient, unpacked[only])
            elif not needs:
                result = rule(gradient)
            elif pick is not None:
                result = rule(gradient, *pick(unpacked))
            else:
                result = rule(gradient, *self._found(needs, i, shape, unpacked))
            if result is None:
                continue
            if type(result) is list:
                for k, each in enumerate(result[: len(results) - i], start=i):
                    if each is not None and inputs[k] is not None:
                        shape, dtype = inputs[k]
                        each = _conjugate(each) if self._conjugated else each
                        results[k] = fit(each, shape, dtype, self.edges[k])
                continue
            if self._conjugated:
                result = _conjugate(result)
            if type(result) is not np.ndarray or result.shape != shape or result.dtype is not dtype:
                result = fit(result, shape, dtype, self.edges[i])
            results[i] = result
        return tuple(results)

    def backward_of(self, gradients: Gradients, wanted: Sequence[int]) -> Gradients:
        """Runs the rules of some of these inputs."""
        return self.backward(gradients, [rule for rule in self._plan.rules if rule[0] in wanted])

    def _recorded(self, k: int, value: Any) -> Tensor:
        place = self._plan.saved[k]
        edge = self.edges[place] if place >= 0 else (self, -1 - place)
        if edge is None or not is_inexact(value.array.dtype):
            return attach(value.array, None, memory=value)
        return attach(value.array, *edge, memory=value)

    def _found(
        self, needs: tuple[Need, ...], i: int, shape: Shape, unpacked: list[Any]
    ) -> list[Any]:
        found: list[Any] = []
        for need in needs:
            if isinstance(need, int):
                found.append(unpacked[need])
            elif need == "shape":
                found.append(shape)
            elif need in self._options:
                found.append(self._options[need])
            else:
                found.append(i if need == "i" else self._operation.options.get(need))
        return found

    def _what(self, k: int) -> str:
        plan = self._plan
        return f"the {'argument' if plan.saved[k] >= 0 else 'result'} {plan.saved_names[k]!r}"

    def saved_leaves(self) -> tuple[Any, ...]:
        """Returns one item per saved entry: the entry if a leaf holds it, else None."""
        return tuple([
            entry if place >= 0 and is_leaf(self.edges[place]) else None
            for place, entry in zip(self._plan.saved, self._saved or (), strict=False)
        ])  # fmt: skip


def _conjugate(gradient: Any) -> Any:
    if type(gradient) is tuple:
        return tuple([None if g is None else np.conjugate(g) for g in gradient])
    return np.conjugate(gradient)


# -- `Operation` ---------------------------------------------------------------------------------

SEVERAL: Final = "*"
_AS_THEY_ARE: Final = frozenset({float, int, np.ndarray, np.float32, np.float64, type(None)})
"""Argument types that the loop of a call skips: an isinstance test for Tensor is slower."""
_NO_TENSORS: Final = _AS_THEY_ARE | {bool, tuple, str}
"""Types of arguments and options that are no Tensors."""
_new = Tensor.__new__
_new_value = Value.__new__
_new_node = OperationNode.__new__


@final
class Operation:
    """A recorded function over arrays and Tensors; with arrays alone it returns `forward`'s result.

    Args:
        name: The name in messages, and in the table of `autocast`.
        forward: The function over arrays; extra parameters are keywords.
        arguments: The names of its leading array arguments, `a b`; `*parts` for any number.
        outputs: The names of its outputs if `forward` returns a tuple of them, `values vectors`;
            `*` for a list or tuple of any length, which rules cannot name.
        arrays: The names of options that are arrays too, such as `where weights`.
        options: The defaults of its other options, as rules see them. A call with Tensors refuses
            an option that is not named here or in `arrays`.
        view: True if the result may share the first argument's memory.
        kernels: Other forward functions by the name of the array library: `{"cupy": function}`.
        complex_rule: The numbers that the rules hold for. None: real numbers alone; complex ones
            are refused. "holomorphic": the rules are written as for real numbers and are right
            wherever `forward` is holomorphic, as the node conjugates the gradients that come in
            and go out. "own": the rules handle complex numbers themselves.
        rules: The gradient rule by argument name. An argument without a rule is never
            differentiated. With `*parts` the one rule may also name `i`, the number of the part
            that it is for, and `shapes`, the shapes of all parts.

    >>> import numpy as np
    >>> from telegrad.autograd import extend, tensor
    >>> cube = extend.primitive("cube", lambda x: x**3, "x", x=lambda g, x: g * 3.0 * x * x)
    >>> x = tensor(2.0, requires_grad=True)
    >>> cube(x).backward()
    >>> type(cube).__name__, x.grad
    ('Operation', tensor(12.))
    """

    def __init__(
        self,
        name: str,
        forward: Callable[..., Any],
        arguments: str,
        *,
        outputs: str = "",
        arrays: str = "",
        options: Mapping[str, Any] | None = None,
        view: bool = False,
        kernels: Mapping[str, Callable[..., Any]] | None = None,
        complex_rule: str | None = None,
        **rules: Callable[..., Any],
    ) -> None:
        self.name = self.__name__ = self.__qualname__ = name
        self.__doc__ = forward.__doc__
        self._short = PRECISION.get(name)  # None: `autocast` does not change its dtype
        self.options = dict(options or {})
        self._variadic = arguments.startswith("*")
        self._arguments = tuple(arguments.lstrip("*").split())
        self._count = -1 if self._variadic else len(self._arguments)
        self._optional = tuple(arrays.split())
        self.several = bool(outputs)
        self._outputs = tuple(outputs.replace(SEVERAL, "").split()) if outputs else ("y",)
        self._view = view
        self._kernels = dict(kernels or {})
        self.forward = self._kernels.pop("numpy", forward)
        self._holomorphic = complex_rule == "holomorphic"
        self._complex = complex_rule is not None
        names = [*self._arguments, *self._optional, *self.options, *self._outputs]
        known = {*names, "shape", "i", "shapes"}
        if len(known) < len(names) + 3:
            raise ValueError(f"{name!r} has two meanings for one name")
        self.rules = {argument: compile_rule(rule, known) for argument, rule in rules.items()}
        if not rules.keys() <= {*self._arguments, *self._optional}:
            raise ValueError(f"{name!r} has rules for unknown arguments: {sorted(rules)}")
        self._plans: dict[tuple[str, ...], dict[int, Plan]] = {}
        self._usual: dict[int, Plan] = {}  # the plans of calls with all arguments and no options

    @cached_property
    def __signature__(self) -> Any:
        """The signature of `forward`."""
        return signature_of(self.forward)

    @property
    def array_names(self) -> tuple[str, ...]:
        """The names of arguments and options that are arrays."""
        return (*self._arguments, *self._optional)

    @cached_property
    def _positional(self) -> tuple[str, ...]:
        return positional_names(self.forward)

    def __call__(self, *inputs: Any, **keywords: Any) -> Any:
        """Computes, and records if grad mode is on and a Tensor needs a gradient.

        Raises:
            TypeError: There are too many or too few arguments, or an option has no rule.
            ValueError: The arrays are on different devices.
            AutogradError: An argument without a rule needs a gradient; or recorded values are
                complex and the rules are of real numbers.
        """
        if self._short is not None and (casting := CASTING.get()) is not None:
            inputs, keywords = casting.of_call(inputs, keywords, short=self._short)
        names = self._arguments
        plans = self._usual
        if keywords or len(inputs) != self._count:
            array_options = _has_tensor(keywords.values())
            tensor_first = inputs and isinstance(inputs[0], Tensor)  # the usual case
            if not array_options and not tensor_first and not _has_tensor(inputs):
                return self._compute(inputs, names, keywords)
            usual = len(inputs) == self._count and keywords.keys() <= self.options.keys()
            if array_options or not usual:
                inputs, names, keywords = self._bind(inputs, keywords)
                # Plans for any number of parts are not kept: the table would grow without end.
                plans = {} if self._variadic else self._plans.setdefault(names, {})
        values: list[Any] = [*inputs]
        arrays: list[Any] = [*inputs]
        edges: list[Edge | None] = [None] * len(inputs)
        tensors = False
        mask = 0
        for i, x in enumerate(inputs):
            if type(x) in _AS_THEY_ARE:
                continue
            if isinstance(x, Tensor):
                tensors = True
                value = values[i] = x._value
                arrays[i] = value.array
                edge = x._edge
                if edge is None and x._requires_grad:
                    leaf: Any = x._leaf  # not None, as x needs a gradient
                    edge = ((leaf.held and leaf.held()) or leaf.node(x), 0)
                if edge is not None:
                    edges[i] = edge
                    mask |= 1 << i
            elif takes_ufuncs(x) and isinstance(self.forward, np.ufunc) and _has_tensor(inputs):
                return self._leave_to(x, inputs, keywords)
            else:
                values[i] = arrays[i] = self._operand(x, inputs)
        if len(inputs) == 2 and inputs[0] is inputs[1]:
            # x * x is a square even if another thread replaces x.data meanwhile
            values[1], arrays[1] = values[0], arrays[0]
        if names is not self._arguments or (
            self._kernels and not (arrays and type(arrays[0]) is np.ndarray)
        ):
            result = self._compute(arrays, names, keywords)
        else:
            try:
                # `**keywords` would create a dict even when it is empty
                forward = self.forward
                result = forward(*arrays, **keywords) if keywords else forward(*arrays)
            except (TypeError, ValueError, AttributeError) as error:
                check_devices(self.name, *arrays)  # CuPy's errors for a NumPy array
                check_supported(self.forward, error, *arrays)
                raise
        if not tensors:
            return result
        if self.several:
            return self._attach_several(result, names, plans, mask, values, edges, keywords)
        if type(result) is not np.ndarray:
            if not is_array(result):
                result = np.asarray(result)
            elif len(arrays) > 1:  # CuPy lets one GPU read another one's memory, unordered
                check_devices(self.name, *arrays)
        held, is_view = _new_value(Value), False
        held.array = result
        held.counter = None
        held.changes = 0
        if self._view and type(values[0]) is Value:
            held, is_view = _of_memory(values[0], result)
        edge = None
        if mask and (mode := ENABLED.get()):
            node = self._record(names, plans, mask, values, edges, (held,), keywords)
            if node is not None:
                edge = (node, 0)
                if mode is not True:
                    mode.recorded(node, arrays, (result,))
        made = _new(Tensor)
        made._value = held
        made._edge = edge
        made._requires_grad = False
        made._is_view = is_view
        made._leaf = None
        made.grad = None
        return made

    def _leave_to(self, x: Any, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Returns what the library of `x` makes of the call, which keeps its labels."""
        result = x.__array_ufunc__(self.forward, "__call__", *inputs, **keywords)
        if result is NotImplemented:
            raise TypeError(
                f"{self.name} of a tensor and a {type(x).__name__}, which does not compute with "
                "tensors; pass np.asarray(x)"
            )
        return result

    def _operand(self, x: Any, inputs: tuple[Any, ...]) -> Any:
        if type(x) is list or type(x) is tuple:
            return _array_of(x, inputs)
        if isinstance(x, np.ndarray):
            return _plain(self.name, x) if any(isinstance(y, Tensor) for y in inputs) else x
        if is_sparse(x) and any(isinstance(other, Tensor) for other in inputs):
            raise TypeError(
                f"{self.name} of a tensor and a sparse matrix; of those, telegrad knows "
                "matrix @ tensor and tensor @ matrix alone, for all else write matrix.toarray()"
            )
        return x

    def _compute(self, arrays: Any, names: tuple[str, ...], keywords: dict[str, Any]) -> Any:
        forward = self.forward
        if self._kernels:
            forward = self._kernels.get(namespace(*arrays).__name__, forward)
        leading = arrays
        if len(names) > len(self._arguments) and not self._variadic:
            first = len(self._arguments)
            keywords = {**keywords, **dict(zip(names[first:], arrays[first:], strict=True))}
            leading = arrays[:first]
        try:
            return forward(*leading, **keywords)
        except (TypeError, ValueError, AttributeError) as error:
            check_devices(self.name, *arrays)
            check_supported(self.forward, error, *arrays)
            raise

    def _bind(
        self, inputs: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Any, ...], tuple[str, ...], dict[str, Any]]:
        """Sorts the arguments of a call, as NumPy would, into arrays, their names, and options."""
        if self._variadic:
            self._check_options(keywords)
            return inputs, self._arguments * len(inputs), keywords
        count = self._count
        if len(inputs) > count:
            names = self._positional[count:]
            given = inputs[count:]
            if len(given) > len(names):
                raise self._wrong_number(inputs)
            keywords = {**dict(zip(names, given, strict=False)), **keywords}
            inputs = inputs[:count]
        missing = self._arguments[len(inputs) :]
        if not all(name in keywords for name in missing):
            raise self._wrong_number(inputs)
        optional = tuple([name for name in self._optional if keywords.get(name) is not None])
        arrays = (*inputs, *(keywords[name] for name in (*missing, *optional)))
        taken = {*missing, *self._optional}
        options = {name: x for name, x in keywords.items() if name not in taken}
        return arrays, (*self._arguments, *optional), self._check_options(options)

    def _wrong_number(self, inputs: tuple[Any, ...]) -> TypeError:
        return TypeError(f"{self.name} takes {self._count} arguments, {len(inputs)} were given")

    def _check_options(self, given: dict[str, Any]) -> dict[str, Any]:
        options = {}
        for name, x in given.items():
            if isinstance(x, Tensor):
                if x.requires_grad and ENABLED.get():
                    raise self._no_gradient(name)
                x = x.data
            if name in self.options:
                options[name] = x
            elif not self._is_default(name, x):
                raise TypeError(f"{self.name} of tensors does not take {name}")
        return options

    def _is_default(self, name: str, x: Any) -> bool:
        signature = self.__signature__
        parameter = None if signature is None else signature.parameters.get(name)
        return (
            parameter is not None and type(x) in (bool, str, type(None)) and x == parameter.default
        )

    def _no_gradient(self, *names: str) -> AutogradError:
        return AutogradError(
            f"{self.name} has no gradient with respect to {', '.join(names)}; pass t.detach()"
        )

    def _attach_several(
        self,
        results: Any,
        names: tuple[str, ...],
        plans: dict[int, Plan],
        mask: int,
        values: list[Any],
        edges: list[Edge | None],
        keywords: dict[str, Any],
    ) -> Any:
        arrays = [x if is_array(x) else np.asarray(x) for x in results]
        held = tuple(
            [_of_memory(values[0], x) if self._view else (Value(x), False) for x in arrays]
        )
        node = None
        if mask and (mode := ENABLED.get()):
            outputs = tuple([value for value, _ in held])
            node = self._record(names, plans, mask, values, edges, outputs, keywords)
            if node is not None and mode is not True:
                given = [x.array if type(x) is Value else x for x in values]
                mode.recorded(node, given, arrays)
        made = []
        for k, (value, is_view) in enumerate(held):
            tensor = _new(Tensor)
            edge = (node, k) if node is not None and is_inexact(value.array.dtype) else None
            tensor._set_up(value, edge, is_view=is_view)
            made.append(tensor)
        if isinstance(results, tuple) and type(results) is not tuple:
            return type(results)(*made)  # a named tuple
        return type(results)(made) if isinstance(results, (list, tuple)) else made

    def _record(
        self,
        names: tuple[str, ...],
        plans: dict[int, Plan],
        mask: int,
        values: list[Any],
        edges: list[Edge | None],
        outputs: tuple[Value, ...],
        keywords: dict[str, Any],
    ) -> OperationNode | None:
        plan = plans.get(mask)
        if plan is None:
            plan = plans[mask] = self._plan(names, mask)
        first = outputs[0].array
        dtype = first.dtype
        conjugated = False
        mixed = dtype.kind != "f"
        inputs: list[Any] = [None] * len(values)
        for rule in plan.rules:
            i = rule[0]
            array = values[i].array
            exact = array.dtype
            inputs[i] = (array.shape, exact)
            mixed = mixed or (exact is not dtype and exact.kind != "f")
        if mixed:
            if not any(is_inexact(value.array.dtype) for value in outputs):
                if dtype.kind == "O":
                    raise AutogradError(
                        f"{self.name} of a tensor that needs a gradient gave objects, which have "
                        "none; pass an array of numbers"
                    )
                return None  # integers and truth values: the derivative is zero wherever it exists
            dtypes = [kind[1] for kind in inputs if kind is not None]
            conjugated = self._conjugates([*dtypes, *(value.array.dtype for value in outputs)])
        if self._variadic:
            shapes = [v.array.shape if type(v) is Value else np.shape(v) for v in values]
            keywords = {**keywords, "shapes": shapes}
        saved: list[Any] = []
        for k in plan.saved:
            value = values[k] if k >= 0 else outputs[-1 - k]
            if type(value) is Value:
                saved.append((value, (value.counter or value).changes))
            else:
                saved.append(value)
        node = _new_node(OperationNode)  # calling a class with `__init__` takes twice as long
        node.edges = tuple(edges)
        node.num_outputs = len(outputs)
        node._hooks = None
        node._operation = self
        node._plan = plan
        node._saved = saved
        node._inputs = inputs
        node._options = keywords
        node._conjugated = conjugated
        if type(first) is not np.ndarray and (place := current_place(first)) is not None:
            node._made_on = (place,)
        return node

    def _plan(self, names: tuple[str, ...], mask: int) -> Plan:
        missing = [x for i, x in enumerate(names) if mask >> i & 1 and x not in self.rules]
        if missing:
            raise self._no_gradient(*missing)
        return Plan(names, self._outputs, self.rules, mask)

    def _conjugates(self, dtypes: list[np.dtype[Any]]) -> bool:
        found = [dtype for dtype in dtypes if dtype.kind == "c"]
        if found and not self._complex:
            raise AutogradError(
                f"{self.name} of a tensor that needs a gradient gave {found[-1]}, and its rule is "
                "of real numbers; pass t.detach()"
            )
        return bool(found) and self._holomorphic

    def __repr__(self) -> str:
        return f"<operation {self.name}>"


def _has_tensor(values: Iterable[Any]) -> bool:
    for x in values:  # noqa: SIM110  a generator takes three times as long
        if type(x) not in _NO_TENSORS and isinstance(x, Tensor):
            return True
    return False


def _of_memory(source: Any, result: Any) -> tuple[Value, bool]:
    if type(source) is not Value:
        return Value(result), False
    array = source.array
    if type(result) is np.ndarray and type(array) is np.ndarray and result is not array:
        base = result.base
        if base is None:
            return Value(result), False
        if result.size and (base is array or base is array.base):
            return Value(result, source), True
    shares = namespace(result).may_share_memory(array, result)
    return (Value(result, source), True) if shares else (Value(result), False)


def _plain(name: str, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns an array of a subclass as a plain NumPy array, as rules multiply item by item."""
    if x.__array_priority__ > 0.0:  # np.matrix, masked arrays, arrays with units
        raise TypeError(
            f"{name} of a tensor and a {type(x).__name__}, whose arithmetic is not that of arrays; "
            "pass np.asarray(x), of a masked array x.filled(value)"
        )
    return np.asarray(x)


def _array_of(numbers: Any, inputs: tuple[Any, ...]) -> Any:
    """Returns a list as an array on the device of the first input that has one."""
    for x in inputs:
        if isinstance(x, Tensor):
            return array_beside(numbers, x.data)
        if is_array(x):
            return array_beside(numbers, x)
    return np.asarray(numbers)
