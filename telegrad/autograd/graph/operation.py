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
None for no gradient, or a list with the gradients of its argument and of those that follow it,
where one computation finds several.

With several outputs `g` is a tuple with one gradient per output, None for an output without one.

Complex numbers: the gradient of a real loss with respect to z = x + iy is dL/dx + i dL/dy, the
direction in which the loss rises most (PyTorch's convention; JAX's is its conjugate).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, final

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
from telegrad.autograd.graph.call_node import CallNode
from telegrad.autograd.graph.dispatch import TABLE, Tier
from telegrad.autograd.graph.grad_mode import ENABLED
from telegrad.autograd.graph.node import Edge, Value
from telegrad.autograd.graph.parameters import Parameters
from telegrad.autograd.graph.plan import Plan, compile_rule, make_plan
from telegrad.autograd.tensor.tensor import Tensor, made_of
from telegrad.errors import AutogradError

SEVERAL: Final = "*"
_AS_THEY_ARE: Final = frozenset({float, int, np.ndarray, np.float32, np.float64, type(None)})
"""Argument types that the loop of a call skips: an isinstance test for Tensor is slower."""
_NO_TENSORS: Final = _AS_THEY_ARE | {bool, tuple, str}
"""Types of arguments and options that are no Tensors."""
_new = Tensor.__new__
_new_value = Value.__new__
_new_node = CallNode.__new__


@final
class Operation:
    """A recorded function over arrays and Tensors; with arrays alone it returns `forward`'s result.

    Args:
        name: The name in messages, and in the table of `autocast`.
        forward: The function over arrays; extra parameters are keywords.
        arguments: The names of its leading array arguments, `a b`; `*parts` for any number.
        stands_for: Functions that this operation replaces when a Tensor is among their arguments.
            They must have no entry yet; they are ufuncs or dispatch by `__array_function__`.
        tier: The number of times that it can be differentiated.
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

    Raises:
        ValueError: A rule names something unknown, or a function in `stands_for` has an entry.

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
        stands_for: tuple[Callable[..., Any], ...] = (),
        tier: Tier = Tier.SECOND_ORDER,
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
        self._kernels = dict(kernels or {})
        self.forward = self._kernels.pop("numpy", forward)
        self._parameters = Parameters(name, self.forward, arguments, arrays, options)
        self._arguments = self._parameters.arrays
        self.several = bool(outputs)
        self._outputs = tuple(outputs.replace(SEVERAL, "").split()) if outputs else ("y",)
        self._view = view
        self._complex_rule = complex_rule
        names = [*self.array_names, *self.options, *self._outputs]
        known = {*names, "shape", "i", "shapes"}
        if len(known) < len(names) + 3:
            raise ValueError(f"{name!r} has two meanings for one name")
        self.rules = {argument: compile_rule(rule, known) for argument, rule in rules.items()}
        if not rules.keys() <= {*self.array_names}:
            raise ValueError(f"{name!r} has rules for unknown arguments: {sorted(rules)}")
        # By the bit set of inputs that need a gradient, and by their names if not the usual ones.
        self._plans: dict[int | tuple[tuple[str, ...], int], Plan] = {}
        TABLE.register(*stands_for, tier=tier)(self)

    @property
    def __signature__(self) -> Any:
        """The signature of `forward`."""
        return self._parameters.signature

    @property
    def array_names(self) -> tuple[str, ...]:
        """The names of arguments and options that are arrays."""
        return (*self._arguments, *self._parameters.optional)

    @property
    def options(self) -> Mapping[str, Any]:
        """The defaults of the options that are no arrays."""
        return self._parameters.options

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
        names, parameters = self._arguments, self._parameters
        if keywords or len(inputs) != parameters.count:
            array_options = _has_tensor(keywords.values())
            tensor_first = inputs and isinstance(inputs[0], Tensor)  # the usual case
            if not array_options and not tensor_first and not _has_tensor(inputs):
                return self._compute(inputs, names, keywords)
            known = parameters.options.keys()
            if array_options or len(inputs) != parameters.count or not keywords.keys() <= known:
                inputs, names, keywords = parameters.bind(inputs, keywords)
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
            except (TypeError, ValueError, AttributeError, MemoryError) as error:
                self._explain(error, arrays)
                raise
        if not tensors:
            return result
        if self.several:
            if len(arrays) > 1 and type(arrays[0]) is not np.ndarray:
                check_devices(self.name, *arrays)
            return self._attach_several(result, names, mask, values, edges, keywords)
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
            node = self._record(names, mask, values, edges, (held,), keywords)
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
        if len(names) > len(self._arguments) and not self._parameters.variadic:
            first = len(self._arguments)
            keywords = {**keywords, **dict(zip(names[first:], arrays[first:], strict=True))}
            leading = arrays[:first]
        try:
            return forward(*leading, **keywords)
        except (TypeError, ValueError, AttributeError, MemoryError) as error:
            self._explain(error, arrays)
            raise

    def _explain(self, error: Exception, arrays: Any) -> None:
        if isinstance(error, MemoryError):
            shapes = ", ".join([str(x.shape) for x in arrays if is_array(x)])
            error.add_note(f"no memory was left in {self.name!r} of arrays of the shapes {shapes}")
        else:
            check_devices(self.name, *arrays)  # CuPy's errors for a NumPy array
            check_supported(self.forward, error, *arrays)

    def _attach_several(
        self,
        results: Any,
        names: tuple[str, ...],
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
            node = self._record(names, mask, values, edges, outputs, keywords)
            if node is not None and mode is not True:
                given = [x.array if type(x) is Value else x for x in values]
                mode.recorded(node, given, arrays)
        made = []
        for k, (value, is_view) in enumerate(held):
            edge = (node, k) if node is not None and is_inexact(value.array.dtype) else None
            made.append(made_of(value, edge, is_view=is_view))
        if isinstance(results, tuple) and type(results) is not tuple:
            return type(results)(*made)  # a named tuple
        return type(results)(made) if isinstance(results, (list, tuple)) else made

    def _record(
        self,
        names: tuple[str, ...],
        mask: int,
        values: list[Any],
        edges: list[Edge | None],
        outputs: tuple[Value, ...],
        keywords: dict[str, Any],
    ) -> CallNode | None:
        key = mask if names is self._arguments else (names, mask)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plan(names, mask)
            if not self._parameters.variadic:  # else the table would grow without end
                self._plans[key] = plan
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
        if self._parameters.variadic:
            shapes = [v.array.shape if type(v) is Value else np.shape(v) for v in values]
            keywords = {**keywords, "shapes": shapes}
        saved: list[Any] = []
        for k in plan.saved:
            value = values[k] if k >= 0 else outputs[-1 - k]
            if type(value) is Value:
                saved.append((value, (value.counter or value).changes))
            else:
                saved.append(value)
        node = _new_node(CallNode)  # calling a class with `__init__` takes twice as long
        node.edges = tuple(edges)
        node.num_outputs = len(outputs)
        node._hooks = None
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
            raise self._parameters.no_gradient(*missing)
        how: Any = {"several": self.several, "options": self.options}
        return make_plan(self.name, names, self._outputs, self.rules, mask, **how)

    def _conjugates(self, dtypes: list[np.dtype[Any]]) -> bool:
        found = [dtype for dtype in dtypes if dtype.kind == "c"]
        if found and self._complex_rule is None:
            raise AutogradError(
                f"{self.name} of a tensor that needs a gradient gave {found[-1]}, and its rule is "
                "of real numbers; pass t.detach()"
            )
        return bool(found) and self._complex_rule == "holomorphic"

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
