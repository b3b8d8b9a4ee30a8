"""`Tensor`: one NumPy or CuPy array and its place in the graph.

Each way to change a Tensor, and its effect on a graph that was recorded before:

    t.data = other             no effect: the graph keeps the array that it was recorded with
    t += x, t[i] = x           not recorded: the array is written into and its version counted, so
                               a rule that saved it raises; recorded: t gets a new array and a new
                               place in the graph, and the earlier graph keeps the old array
    t.data[i] = x              not noticed, as with any shared memory
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from sys import getrefcount
from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias, TypeVar, final

import numpy as np

from telegrad.arrays import (
    array_beside,
    as_array,
    check_devices,
    is_array,
    is_cupy,
    is_inexact,
    namespace,
)
from telegrad.autograd.graph.dispatch import BACKWARD, TABLE, dispatch
from telegrad.autograd.graph.node import (
    Edge,
    HookList,
    Node,
    NodeHooks,
    RemovableHandle,
    Value,
)
from telegrad.autograd.tensor.array_methods import ArrayMethods
from telegrad.autograd.tensor.interchange import Interchange, formatted, represented
from telegrad.autograd.tensor.operators import InPlaceOperators, Operators
from telegrad.autograd.tensor.row_sparse import is_row_sparse
from telegrad.errors import AutogradError

if TYPE_CHECKING:
    from typing import Self

    from telegrad.types import Array

Gradient: TypeAlias = "Array | Tensor"
"""An array; under `create_graph` a Tensor."""

Gradients: TypeAlias = "tuple[Gradient | None, ...]"
"""One gradient per output, or per edge; None if there is no gradient."""

Accumulate: TypeAlias = "Callable[[Tensor, Gradient], None]"
"""A function that adds a gradient to a leaf's: to `tensor.grad`, or in a context's own table."""

T = TypeVar("T", bound="Tensor")
_new = object.__new__
_new_value = Value.__new__

_SOLE: Final = 2
"""What `getrefcount` returns for an object that one attribute alone holds.

It counts the attribute, and its own argument.
"""


@final
class _UfuncProtocol:
    """NumPy's protocol of ufuncs on Tensors, which CuPy's operators find None on one of a GPU.

    NumPy looks `__array_ufunc__` up on the class, and CuPy on the right operand of its operators:

        None        `array * tensor` is left to `Tensor.__rmul__`
        a method    NumPy's ufunc asks the left operand first, and CuPy computes with the Tensor's
                    memory alone: the result would be an array, cut off from the graph
    """

    __slots__ = ()

    def __get__(self, tensor: Tensor | None, kind: type[Tensor]) -> Any:
        if tensor is None:
            return _compute_ufunc
        return None if is_cupy(tensor._value.array) else MethodType(_compute_ufunc, tensor)


def _compute_ufunc(tensor: Tensor, ufunc: np.ufunc, method: str, *args: Any, **kwargs: Any) -> Any:
    return dispatch(ufunc if method == "__call__" else getattr(ufunc, method), args, kwargs)


class Tensor(
    Operators["Tensor"],
    InPlaceOperators,
    ArrayMethods["Tensor"],
    Interchange,
):
    """One array and its place in the graph; shares the array's memory. `tensor()` copies.

    Tensors are hashed by identity, and `==` compares elementwise.

    Args:
        data: An array, or an object that NumPy converts to one.
        requires_grad: True to record operations on the Tensor and fill its `grad`.

    Raises:
        AutogradError: `requires_grad` with a dtype that is neither floating-point nor complex.

    Attributes:
        grad: The sum of the gradients from all backwards, for a leaf that needs a gradient; else
            None. A `RowSparse` if only `nn.Embedding(sparse=True)` has added gradients.

    >>> x = Tensor(np.array([1.0, 2.0]), requires_grad=True)
    >>> (x * x).sum().backward()
    >>> x.grad
    tensor([2., 4.])
    """

    # `operation` reads and sets these by name: method calls would take a tenth of a small step.
    __slots__ = ("__weakref__", "_edge", "_is_view", "_leaf", "_requires_grad", "grad")
    __array_priority__ = 1000.0  # CuPy then leaves `array + tensor` to Tensor
    __hash__ = object.__hash__

    def __init__(self, data: object, *, requires_grad: bool = False) -> None:
        self._value = data._value if isinstance(data, Tensor) else Value(as_array(data))
        self._edge: Edge | None = None
        self._requires_grad = False
        self._is_view = False
        self._leaf: Leaf | None = None
        self.grad: Tensor | None = None
        if requires_grad:
            self.requires_grad = True

    @property
    def data(self) -> Array:
        """The array; shared, not copied. Assigning replaces it and leaves recorded graphs alone.

        Assigning the same array (as `t.data += 1` does) counts as a change in place.
        """
        return self._value.array

    @data.setter
    def data(self, data: object) -> None:
        # Another Tensor's memory keeps its version, so changes through that one are noticed here.
        value = data._value if isinstance(data, Tensor) else Value(as_array(data))
        if value.array is self._value.array:
            self._value.bump()
            return
        if self._requires_grad and value.array.dtype.kind != "f":
            _check_differentiable(value.array)
        self._value = value

    def detach(self) -> Tensor:
        """Returns a Tensor that shares this memory and needs no gradient."""
        return made_of(self._value, is_view=self._is_view)

    def requires_grad_(self, wanted: bool = True) -> Self:
        """Sets `requires_grad` and returns this.

        Raises:
            AutogradError: As for assigning `requires_grad`.
        """
        self.requires_grad = wanted
        return self

    # The place in the graph.

    @property
    def requires_grad(self) -> bool:
        """True if operations on this are recorded. Assignable for leaves."""
        return self._requires_grad or self._edge is not None

    @requires_grad.setter
    def requires_grad(self, wanted: bool) -> None:
        if self._edge is not None:
            if not wanted:
                raise AutogradError(
                    f"a result (of {self._edge[0].name}) cannot stop needing a gradient; "
                    "write t.detach()"
                )
            return
        if wanted:
            _check_differentiable(self._value.array)
            self._make_leaf()
        self._requires_grad = bool(wanted)

    @property
    def is_leaf(self) -> bool:
        """True if this is no recorded result."""
        return self._edge is None

    @property
    def grad_fn(self) -> Node | None:
        """The node that this is an output of; None for a leaf."""
        return None if self._edge is None else self._edge[0]

    @property
    def output_nr(self) -> int:
        """The number of this among the outputs of `grad_fn`; 0 for a leaf."""
        return 0 if self._edge is None else self._edge[1]

    def backward(
        self,
        gradient: Tensor | Array | None = None,
        *,
        retain_graph: bool = False,
        create_graph: bool = False,
    ) -> None:
        """Adds the gradient of this with respect to each leaf to that leaf's `grad`.

        Args:
            gradient: The gradient of this, in its shape; None for a scalar means 1.
            retain_graph: Keeps the graph for another backward.
            create_graph: Records the backward itself; implies `retain_graph`.

        Raises:
            AutogradError: `telegrad.autograd.backward` lists the cases.
        """
        TABLE[BACKWARD]([self], [gradient], retain_graph=retain_graph, create_graph=create_graph)

    def _make_leaf(self) -> Leaf:
        if self._leaf is None:
            self._leaf = Leaf()
        return self._leaf

    # Hooks.

    def retain_grad(self) -> None:
        """Makes backwards add the gradient of this result to its `grad`, as they do for leaves.

        The gradient is that of the value that this holds now, after its hooks have changed it.

        Raises:
            AutogradError: This needs no gradient.
        """
        edge = self._edge
        if edge is None:
            if not self._requires_grad:
                raise AutogradError("a tensor that needs no gradient has none to retain")
            return
        held = weakref.ref(self)  # a strong one would let the node keep the tensor and its array

        def keep(gradient: Gradient) -> None:
            tensor = held()
            if tensor is not None:
                accumulate_grad(tensor, gradient)

        node, output = edge
        retained = node.make_hooks().retained
        if not any(output == other for other, _ in retained):
            retained.add((output, keep))

    def register_hook(self, hook: Callable[[Tensor], Tensor | Array | None]) -> RemovableHandle:
        """Registers `hook(gradient)`, which runs on the gradient of this, once per backward.

        A result other than None replaces the gradient. The hook does not run if no gradient
        arrives. Under `create_graph` the hook's operations are recorded.

        Raises:
            AutogradError: This needs no gradient.
        """
        edge = edge_of(self)
        if edge is None:
            raise AutogradError("a hook on a tensor that needs no gradient would never be called")
        node, output = edge

        def convert(gradient: Any) -> Any:  # a RowSparse stays one on its way to a leaf
            recorded = isinstance(gradient, Tensor)
            as_it_is = recorded or is_row_sparse(gradient)
            result: Any = hook(gradient if as_it_is else Tensor(gradient))
            if result is None:
                return None
            if is_row_sparse(result):
                if not recorded and node.is_end:
                    return result
                result = result.to_dense()
            given = result if isinstance(result, Tensor) else Tensor(result)
            return given if recorded else given.data

        return node.make_hooks().outputs.add((output, convert))

    def register_post_accumulate_hook(
        self, hook: Callable[[Tensor, Accumulate], None]
    ) -> RemovableHandle:
        """Registers `hook(tensor, target)`, which runs after a backward added to this gradient.

        `target` keeps the gradient (see `GradientTarget`): in `tensor.grad` for a local backward,
        in the context for a distributed one.

        Raises:
            AutogradError: This is no leaf that needs a gradient.
        """
        if self._edge is not None or not self._requires_grad:
            raise AutogradError("only a leaf that needs a gradient accumulates one")
        return self._make_leaf().make_post_accumulate().add(hook)

    # Python's and NumPy's protocols.

    __array_ufunc__ = _UfuncProtocol()

    def __cupy_override_elementwise_kernel__(self, kernel: Any, *args: Any, **kwargs: Any) -> Any:
        # CuPy's ufuncs, which `np.multiply(cupy_array, tensor)` ends in, ask for this first.
        function: Any = getattr(np, kernel.name.removeprefix("cupy_"), None)
        if isinstance(function, np.ufunc) and len(args) == function.nin:
            return dispatch(function, args, kwargs)
        plain = [x._exported() if isinstance(x, Tensor) else x for x in args]
        return kernel(*plain, **kwargs)

    def __array_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        return dispatch(func, args, kwargs)

    def __iter__(self) -> Iterator[Tensor]:
        if self.ndim == 0:
            raise TypeError(
                "a tensor without axes has no items to go through; t.item() is its number"
            )
        return (self[i] for i in range(len(self)))

    def __reduce__(self) -> tuple[Any, ...]:
        if self._edge is not None:
            raise AutogradError(
                f"only leaves are copied and pickled, not results (this one is of "
                f"{self._edge[0].name}); write t.detach()"
            )
        attributes = getattr(self, "__dict__", None)  # those of a subclass
        return _rebuild, (type(self), self.data, self._requires_grad, self.grad), attributes

    def __repr__(self) -> str:
        return represented(self, self.grad_fn)

    def __format__(self, spec: str) -> str:
        return formatted(self, spec)


# -- for the packages above: functions on a tensor that users do not call -----------------------


def array_of(x: Any) -> Any:
    """Returns the array of a Tensor, and anything else as it is."""
    return x.data if isinstance(x, Tensor) else x


def edge_of(tensor: Tensor) -> Edge | None:
    """Returns the edge that a tensor's gradient travels along; None if it needs no gradient.

    It is an output of `grad_fn`, or the node of the leaf.
    """
    if tensor._edge is not None or not tensor._requires_grad:
        return tensor._edge
    leaf = tensor._leaf or tensor._make_leaf()
    return ((leaf.held and leaf.held()) or leaf.node(tensor), 0)


def graph_root(
    tensor: Tensor, gradient: object = None, *, create_graph: bool = False
) -> tuple[Edge, Gradient]:
    """Returns the edge and the gradient with which a graph task starts at a tensor.

    Args:
        tensor: The root.
        gradient: An array or Tensor of its shape; None for a scalar means 1.
        create_graph: True to return the gradient as a Tensor.

    Raises:
        AutogradError: The root needs no gradient, or `gradient` is missing or of another shape.
        ValueError: The gradient is on another device.
    """
    edge = edge_of(tensor)
    if edge is None:
        raise AutogradError("the root of a backward needs no gradient: nothing was recorded")
    array = tensor._value.array
    if gradient is None:
        if array.size != 1:
            raise AutogradError(
                f"the root of a backward has shape {tensor.shape}, not one item; "
                "reduce it (t.sum()) or pass its gradient"
            )
        if array.dtype.kind == "c":
            raise AutogradError(
                "the root of a backward is complex, and gradients are of real numbers; take "
                "its real part or its absolute value, or pass its gradient"
            )
        try:
            ones: Array = np.empty_like(array)
        except MemoryError as error:
            error.add_note("no memory was left in 'backward', for the gradient of its root")
            raise
        ones.fill(1)  # `ones_like` would take four times as long
        if not create_graph:
            return edge, ones
        gradient = ones
    if (
        type(gradient) is type(array) is np.ndarray
        and gradient.shape == array.shape
        and gradient.dtype == array.dtype
        and not create_graph
    ):
        return edge, gradient  # the usual case of a gradient that came from elsewhere
    if not isinstance(gradient, Tensor):
        gradient = Tensor(array_beside(gradient, array))
    given = gradient
    if given.shape != array.shape:
        raise AutogradError(
            f"the gradient of a root of shape {array.shape} has shape {given.shape}"
        )
    check_devices("a root and its gradient", array, given.data)
    if given.dtype != array.dtype:
        given = given.astype(array.dtype)
    return edge, given if create_graph else given.data


def accumulate_grad(tensor: Tensor, gradient: Gradient, *, own: bool = False) -> None:
    """Adds `gradient`, in the tensor's shape and dtype, to its `grad`; safe from several threads.

    `grad` is a new Tensor each time. It shares no memory with `gradient`, except that `own`
    lets it keep, and write to, an array that nothing else holds.
    """
    with (tensor._leaf or tensor._make_leaf()).lock:
        held = tensor.grad
        rows = type(gradient) is not np.ndarray and is_row_sparse(gradient)
        if rows or (held is not None and is_row_sparse(held)):
            tensor.grad = _with_rows(held, gradient)
        elif (
            own
            and held is not None
            and type(gradient) is type(held.data) is np.ndarray
            and gradient.dtype == held.dtype
            and gradient.flags.writeable
        ):
            gradient += held.data  # a sum in new memory takes longer
            tensor.grad = holding(gradient)
        elif held is not None:
            total = held + gradient
            tensor.grad = total if isinstance(gradient, Tensor) else Tensor(total.data)
        elif isinstance(gradient, Tensor):
            tensor.grad = gradient.copy()
        else:
            tensor.grad = holding(gradient if own else namespace(gradient).array(gradient))


def replace_data(tensor: Tensor, function: Callable[[Array], Array]) -> None:
    """Replaces the array by `function(array)`; two such replacements never overlap.

    `function` returns a new array and never writes into its argument, so graphs recorded before
    keep their values.
    """
    with (tensor._leaf or tensor._make_leaf()).lock:
        old, new = tensor._value.array, function(tensor._value.array)
        if type(new) is np.ndarray and new.dtype is old.dtype and new is not old:
            tensor._value = Value(new)  # the usual case, without further checks
        else:
            tensor.data = new


def replace_all(
    tensors: Sequence[Tensor], function: Callable[[list[Array]], Sequence[Array]]
) -> None:
    """Replaces the arrays of several Tensors by those of `function(arrays)`, as `replace_data`."""
    held: list[threading.RLock] = []  # an ExitStack takes longer than all else here
    try:
        for tensor in sorted(tensors, key=id):  # the same order in all threads
            lock = tensor._make_leaf().lock
            lock.acquire()
            held.append(lock)
        arrays = [tensor._value.array for tensor in tensors]
        for tensor, old, new in zip(tensors, arrays, function(arrays), strict=True):
            if type(new) is type(old) and new.dtype == old.dtype:
                tensor._value = Value(new)
            else:
                tensor.data = new
    finally:
        for lock in reversed(held):
            lock.release()


def change_rows(tensor: Tensor, function: Callable[[Array], None]) -> None:
    """Calls `function(array)`, which writes into the array; two such changes never overlap.

    `function` gets the present array if nothing else holds it (no graph, no view, no other
    name). Otherwise it gets a copy, so graphs recorded before keep their values. `embedding`
    holds the same lock while it reads its table. Any other reader may see some rows changed
    and others not yet.
    """
    with tensor._make_leaf().lock:
        value_holders = getrefcount(tensor._value)
        array_holders = getrefcount(tensor._value.array)
        if not value_holders == array_holders == _SOLE or tensor._value.array.base is not None:
            tensor._value = Value(tensor._value.array.copy())
        function(tensor._value.array)
        tensor._value.bump()


def steady(tensor: Tensor) -> AbstractContextManager[object]:
    """Returns a context manager; while its block runs, `change_rows` in other threads waits."""
    return tensor._make_leaf().lock


def post_accumulate_hooks(tensor: Tensor) -> Iterable[Callable[[Tensor, Accumulate], None]]:
    """Returns the hooks that run after a backward has added to the gradient of a tensor."""
    leaf = tensor._leaf
    return () if leaf is None or leaf.post_accumulate is None else leaf.post_accumulate


# -- the end of the graph at a leaf ---------------------------------------------------------------
#
# It is in this file as it holds its Tensor and a Tensor creates it. Other nodes hold no Tensor.


@final
class AccumulateGrad(Node):
    """The end of the graph at one leaf.

    A leaf has at most one such node at any time. The graphs keep the node; the leaf does not, as
    that would be a reference cycle around its array: see `Leaf.node`.
    """

    __slots__ = ("tensor",)
    is_end: ClassVar[bool] = True

    def __init__(self, tensor: Tensor) -> None:
        self.edges = ()
        self.num_outputs = 1
        self._hooks = None
        self.tensor = tensor

    def backward(self, gradients: Gradients) -> Gradients:
        """Returns no gradients; a graph task adds to the leaf instead of calling this."""
        return ()

    @property
    def hooks(self) -> NodeHooks | None:
        """The leaf's hooks. The leaf keeps them because it outlives its nodes."""
        leaf = self.tensor._leaf
        return None if leaf is None else leaf.hooks

    def make_hooks(self) -> NodeHooks:
        """Returns the leaf's hooks, which it creates if there are none."""
        leaf = self.tensor._make_leaf()
        if leaf.hooks is None:
            leaf.hooks = NodeHooks()
        return leaf.hooks


@final
class Leaf:
    """The lock, the hooks and the node of one leaf.

    Attributes:
        lock: The lock held while `grad` or the array is replaced, which may run operations.
        hooks: The hooks around its node, or None.
        post_accumulate: The hooks that run after a gradient was added, or None.
        held: A weak reference to its node, alive while a graph has the node; read it by `node`.
    """

    __slots__ = ("_node_lock", "held", "hooks", "lock", "post_accumulate")

    def __init__(self) -> None:
        self.lock = threading.RLock()  # code that interrupts its holder may read the leaf
        self.hooks: NodeHooks | None = None
        self.post_accumulate: HookList[Callable[[Tensor, Accumulate], None]] | None = None
        self._node_lock = threading.RLock()  # guards `held` and the creation of post_accumulate
        self.held: weakref.ref[AccumulateGrad] | None = None

    def make_post_accumulate(self) -> HookList[Callable[[Tensor, Accumulate], None]]:
        """Returns `post_accumulate`, which it creates if there is none."""
        with self._node_lock:
            if self.post_accumulate is None:
                self.post_accumulate = HookList()
            return self.post_accumulate

    def node(self, tensor: Tensor) -> AccumulateGrad:
        """Returns the node of `tensor`, whose leaf this is: the same one while a graph has it."""
        held = self.held
        node = None if held is None else held()
        if node is not None:
            return node
        with self._node_lock:  # two threads that record the same leaf must use the same node
            held = self.held
            node = None if held is None else held()
            if node is None:
                node = AccumulateGrad(tensor)
                self.held = weakref.ref(node)
            return node


# -- construction of Tensors in the graph --------------------------------------------------------


def holding(array: Array) -> Tensor:
    """Returns a leaf that needs no gradient and shares the memory of `array`, which holds numbers.

    It sets the slots itself: calling a class with `__init__` takes twice as long.
    """
    value = _new_value(Value)
    value.array = array
    value.counter = None
    value.changes = 0
    made = _new(Tensor)
    made._value = value
    made._edge = None
    made._requires_grad = False
    made._is_view = False
    made._leaf = None
    made.grad = None
    return made


def made_of(value: Value, edge: Edge | None = None, *, is_view: bool = False) -> Tensor:
    """Returns a Tensor that holds `value`, below `edge`."""
    made = _new(Tensor)
    made._value = value
    made._edge = edge
    made._requires_grad = False
    made._is_view = is_view
    made._leaf = None
    made.grad = None
    return made


def attach(array: Array, node: Node | None, output: int = 0) -> Tensor:
    """Returns a Tensor for one output of `node`, or one without a graph if `node` is None."""
    plain = array if type(array) is np.ndarray or is_array(array) else as_array(array)
    return made_of(Value(plain), None if node is None else (node, output))


def place_under(tensor: Tensor, node: Node, output: int) -> None:
    """Makes `tensor` one output of `node`; it needs no gradient yet, and nothing else holds it."""
    tensor._edge = (node, output)


def _check_differentiable(array: Array) -> None:
    if not is_inexact(array.dtype):
        raise AutogradError(
            f"only floating-point tensors can need a gradient, not {array.dtype}; "
            "write t.astype(np.float32) first"
        )


def _with_rows(held: Any, gradient: Any) -> Any:
    """Returns the sum of two gradients, at least one of them a RowSparse; `held` may be None."""
    if held is None:
        return gradient.copy()
    if isinstance(gradient, Tensor):
        return Tensor(held.to_dense()) + gradient
    total = (held.data if isinstance(held, Tensor) else held) + gradient
    return total if is_row_sparse(total) else Tensor(total)


def _rebuild(cls: type[T], data: Array, requires_grad: bool, grad: Tensor | None) -> T:
    made = cls(data, requires_grad=requires_grad)
    made.grad = grad
    return made
