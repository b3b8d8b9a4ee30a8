"""Functions of functions: values with gradients, Jacobians, Hessians, and products with them.

Arguments and results are trees: dicts, lists, tuples, named tuples and dataclasses, whose leaves
are Tensors, arrays or numbers. These functions differentiate with respect to the arguments that are
passed to the function. Other Tensors that the function uses, such as parameters, count as
constants.

    value_and_grad(f)(x)   f(x) and its gradient                   one pass back
    elementwise_grad(f)(x) the slope of each item of f(x)          one pass back
    vjp(f, x)              f(x), and v -> v J for any v             one pass back for each v
    jvp(f, x, t)           f(x), and J t                            two passes back
    jacobian(f)(x)         J                                        one for each item of f(x)
    hvp(f, x, t)           f(x), and H t                            two
    hessian(f)(x)          H                                        one, and one for each item of x

Without `create_graph` the results are detached from every graph. With it they can be differentiated
again, also with respect to the Tensors from which the arguments were computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from telegrad.arrays import is_array, is_inexact, namespace
from telegrad.autograd import ops
from telegrad.autograd.differentiate import flatten, grad, tree_map
from telegrad.autograd.graph.grad_mode import enable_grad
from telegrad.autograd.tensor.tensor import Tensor
from telegrad.errors import AutogradError


def value_and_grad(
    function: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    *,
    has_aux: bool = False,
    create_graph: bool = False,
) -> Callable[..., tuple[Any, Any]]:
    """Returns a function that computes the value of `function` and its gradient.

    Args:
        function: A function that returns a Tensor of one item; with `has_aux`, a pair of that
            Tensor and something else.
        argnums: The positions of the arguments that are differentiated.
        has_aux: True if `function` returns (value, other); the returned value is then that pair.
        create_graph: True to record the passes, so that the results can be differentiated again.

    Returns:
        A function with the parameters of `function` that returns (value, gradient). The gradient is
        a tree like the argument, or a tuple of trees if `argnums` is a sequence; it is zero where
        the value does not depend on the argument.

    Raises:
        AutogradError: When the returned function is called: the value is not a Tensor of one item,
            or needs no gradient.

    >>> import numpy as np
    >>> loss = lambda p, x: np.sum((p["w"] * x + p["b"]) ** 2)
    >>> value, gradient = value_and_grad(loss)({"w": 2.0, "b": 1.0}, np.array([1.0, 2.0]))
    >>> value.item(), {name: g.item() for name, g in gradient.items()}
    (34.0, {'w': 26.0, 'b': 16.0})
    """
    _check_form("value_and_grad", function, argnums)

    def evaluate(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        inputs = _Inputs(args, argnums, create_graph=create_graph)
        with enable_grad():
            returned = function(*inputs.arguments, **kwargs)
        value = returned[0] if has_aux else returned
        if not isinstance(value, Tensor):
            raise AutogradError(f"value_and_grad needs a Tensor of one item, not {type(value)}")
        gradients = _gradients(
            [value], inputs.leaves, [None], create_graph=create_graph, retain_graph=False
        )
        result = tree_map(_kept(create_graph), returned)
        return result, inputs.like_arguments(gradients)

    return evaluate


def elementwise_grad(
    function: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    *,
    create_graph: bool = False,
) -> Callable[..., Any]:
    """Returns a function that computes the slope of each output in the argument's item beside it.

    It is for functions that work item by item, such as those of NumPy. For any other function it
    gives the gradient of the sum of the outputs.

    Args:
        function: A function that returns a tree of Tensors.
        argnums: The positions of the arguments that are differentiated.
        create_graph: True to record the passes, so that the results can be differentiated again.

    Returns:
        A function with the parameters of `function` that returns a tree like the argument, or a
        tuple of trees if `argnums` is a sequence.

    >>> import numpy as np
    >>> elementwise_grad(lambda x: x**3)(np.array([1.0, 2.0])).tolist()
    [3.0, 12.0]
    """
    _check_form("elementwise_grad", function, argnums)

    def evaluate(*args: Any, **kwargs: Any) -> Any:
        inputs = _Inputs(args, argnums, create_graph=create_graph)
        with enable_grad():
            roots, _ = flatten(function(*inputs.arguments, **kwargs))
        ones = [namespace(y.data).ones_like(y.data) if isinstance(y, Tensor) else y for y in roots]
        gradients = _gradients(
            roots, inputs.leaves, ones, create_graph=create_graph, retain_graph=False
        )
        return inputs.like_arguments(gradients)

    return evaluate


def vjp(
    function: Callable[..., Any], *primals: Any, create_graph: bool = False
) -> tuple[Any, Callable[..., tuple[Any, ...]]]:
    """Returns `function(*primals)`, and a function that takes gradients of it back to the primals.

    Args:
        function: A function that returns a tree of Tensors.
        primals: Its arguments; all of them are differentiated.
        create_graph: True to record the passes, so that the results can be differentiated again.

    Returns:
        The outputs, and a second function. It takes a tree like the outputs, multiplies it with the
        Jacobian from the left, and returns a tuple of trees like the primals. It may be called any
        number of times.

    >>> import numpy as np
    >>> outputs, pull = vjp(lambda x, y: x * np.sin(y), np.array([2.0, 3.0]), 0.0)
    >>> [g.tolist() for g in pull(np.array([1.0, 10.0]))]
    [[0.0, 0.0], 32.0]
    """
    _check_primals("vjp(f, x)", function, primals)
    inputs = _Inputs(primals, range(len(primals)), create_graph=create_graph)
    with enable_grad():
        outputs = function(*inputs.arguments)
    roots, _ = flatten(outputs)

    def pull(cotangents: Any) -> tuple[Any, ...]:
        given, _ = flatten(cotangents)
        _check_count("vjp", "outputs", roots, given)
        gradients = _gradients(roots, inputs.leaves, given, create_graph=create_graph)
        found: tuple[Any, ...] = inputs.like_arguments(gradients)
        return found

    return tree_map(_kept(create_graph), outputs), pull


def jvp(
    function: Callable[..., Any],
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    create_graph: bool = False,
) -> tuple[Any, Any]:
    """Returns `function(*primals)`, and its rate of change as the primals move by `tangents`.

    There are no rules for forward mode, so this takes two passes back (the transpose of the
    transpose). The operations of the function therefore need rules that can be differentiated once
    more.

    Args:
        function: A function that returns a tree of Tensors.
        primals: Its arguments; all of them are differentiated.
        tangents: The directions: one tree like each primal.
        create_graph: True to record the passes, so that the results can be differentiated again.

    Returns:
        The outputs, and a tree like them: the product with the Jacobian from the right.

    >>> import numpy as np
    >>> outputs, change = jvp(lambda x: x * x, [np.array([2.0, 3.0])], [np.array([1.0, 10.0])])
    >>> change.tolist()
    [4.0, 60.0]
    """
    _check_primals("jvp(f, [x], [t])", function, primals)
    inputs = _Inputs(primals, range(len(primals)), create_graph=create_graph)
    directions, _ = flatten(list(tangents))
    _check_count("jvp", "primals", inputs.places, directions)
    with enable_grad():
        outputs = function(*inputs.arguments)
        roots, rebuild = flatten(outputs)
        # The gradients are linear in `weights`, so their slope in `weights` is the Jacobian
        # transposed.
        weights = [_leaf(namespace(y.data).zeros_like(y.data)) for y in roots]
        pulled = _gradients(roots, inputs.leaves, weights, create_graph=True)
    moving = [k for k, place in enumerate(inputs.places) if place]
    changes = _gradients(
        pulled, weights, [_as_given(directions[k]) for k in moving], create_graph=create_graph
    )
    return tree_map(_kept(create_graph), outputs), rebuild(changes)


def jacobian(
    function: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    *,
    create_graph: bool = False,
) -> Callable[..., Any]:
    """Returns a function that computes the Jacobian: all slopes of the outputs in the arguments.

    Args:
        function: A function that returns a tree of Tensors.
        argnums: The positions of the arguments that are differentiated.
        create_graph: True to record the passes, so that the results can be differentiated again.

    Returns:
        A function with the parameters of `function`. It returns a tree like the outputs; each leaf
        is a tree like the argument (a tuple of trees for several `argnums`). The leaves of these
        trees have the shape of the output followed by that of the argument.

    >>> import numpy as np
    >>> jacobian(lambda x: x * x[0])(np.array([2.0, 3.0])).tolist()
    [[4.0, 0.0], [3.0, 2.0]]
    """
    _check_form("jacobian", function, argnums)

    def evaluate(*args: Any, **kwargs: Any) -> Any:
        inputs = _Inputs(args, argnums, create_graph=create_graph)
        with enable_grad():
            roots, rebuild = flatten(function(*inputs.arguments, **kwargs))
        return rebuild([
            inputs.like_arguments(_rows(y, inputs.leaves, create_graph=create_graph)) for y in roots
        ])  # fmt: skip

    return evaluate


def hvp(
    function: Callable[..., Any],
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    create_graph: bool = False,
) -> tuple[Tensor, tuple[Any, ...]]:
    """Returns `function(*primals)`, and the rate of change of its gradient along `tangents`.

    Args:
        function: A function that returns a Tensor of one item.
        primals: Its arguments; all of them are differentiated.
        tangents: The directions: one tree like each primal.
        create_graph: True to record the passes, so that the results can be differentiated again.

    Returns:
        The value, and a tuple of trees like the primals: the Hessian times the tangents.

    >>> import numpy as np
    >>> value, product = hvp(lambda x: np.sum(x**3), [np.array([1.0, 2.0])], [np.array([1.0, 1.0])])
    >>> value.item(), product[0].tolist()
    (9.0, [6.0, 12.0])
    """
    _check_primals("hvp(f, [x], [t])", function, primals)
    inputs = _Inputs(primals, range(len(primals)), create_graph=create_graph)
    directions, _ = flatten(list(tangents))
    _check_count("hvp", "primals", inputs.places, directions)
    with enable_grad():
        value = function(*inputs.arguments)
    slopes = _gradients([value], inputs.leaves, [None], create_graph=True)
    given = [_as_given(directions[k]) for k, place in enumerate(inputs.places) if place]
    products = _gradients(slopes, inputs.leaves, given, create_graph=create_graph)
    found: tuple[Any, ...] = inputs.like_arguments(products)
    kept: Tensor = _kept(create_graph)(value)
    return kept, found


def hessian(
    function: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    *,
    create_graph: bool = False,
) -> Callable[..., Any]:
    """Returns a function that computes the Hessian: all second derivatives of `function`.

    Args:
        function: A function that returns a Tensor of one item.
        argnums: The positions of the arguments that are differentiated.
        create_graph: True to record the passes, so that the results can be differentiated again.

    Returns:
        A function with the parameters of `function`. It returns a tree like the argument (a tuple
        of trees for several `argnums`); each leaf is such a tree again. The leaves of these have
        the shapes of both arguments, one after the other.

    >>> import numpy as np
    >>> hessian(lambda x: x[0] ** 2 * x[1])(np.array([2.0, 3.0])).tolist()
    [[6.0, 4.0], [4.0, 0.0]]
    """
    _check_form("hessian", function, argnums)

    def slopes(*args: Any, **kwargs: Any) -> Any:
        return value_and_grad(function, argnums, create_graph=True)(*args, **kwargs)[1]

    return jacobian(slopes, argnums, create_graph=create_graph)


def _check_form(name: str, function: object, argnums: object) -> None:
    """Checks the arguments of a verb that returns a function.

    Raises:
        TypeError: The first is no function, or the second an argument of that function.
    """
    if not callable(function):
        raise TypeError(
            f"{name} takes a function first, not a {type(function).__name__}; write {name}(f)(x)"
        )
    numbers = argnums if isinstance(argnums, (list, tuple, range)) else [argnums]
    if all(isinstance(k, int) and not isinstance(k, bool) for k in numbers):
        return
    raise TypeError(
        f"the second argument of {name} is argnums, the position of the argument to differentiate "
        f"or several, not a {type(argnums).__name__}; {name} returns a function: write {name}(f)(x)"
    )


def _check_primals(form: str, function: object, primals: object) -> None:
    """Checks the arguments of a verb that calls the function at once.

    Raises:
        TypeError: The first is no function, or there are no arguments for it.
    """
    name = form.partition("(")[0]
    if not callable(function):
        raise TypeError(
            f"{name} takes a function first, not a {type(function).__name__}; write {form}"
        )
    if not isinstance(primals, (list, tuple)) or not primals:
        raise TypeError(f"{name} calls the function, and needs its arguments; write {form}")


class _Inputs:
    """The arguments of one call, with leaves of a new graph in place of the differentiated ones.

    Args:
        args: The positional arguments.
        argnums: The positions of the arguments that are differentiated.
        create_graph: True if Tensors stay connected to the graph that they come from.

    Attributes:
        arguments: The arguments with which the function is called.
        leaves: The Tensors that are differentiated.
        places: One bool for each leaf of the trees: True if it is differentiated.
    """

    def __init__(
        self, args: Sequence[Any], argnums: int | Sequence[int], *, create_graph: bool
    ) -> None:
        self._alone = isinstance(argnums, int)
        numbers = [argnums] if isinstance(argnums, int) else list(argnums)
        if not all(-len(args) <= k < len(args) for k in numbers):
            raise ValueError(f"argnums {argnums} is out of range: {len(args)} positional arguments")
        if len({k % len(args) for k in numbers}) < len(numbers):
            raise ValueError(f"argnums {argnums} name an argument twice")
        flat, self._rebuild = flatten([args[k] for k in numbers])
        given = [_as_given(x) for x in flat]
        self.places = [isinstance(x, Tensor) and is_inexact(x.dtype) for x in given]
        made = [
            _leaf(x, connected=create_graph) if place else x
            for x, place in zip(given, self.places, strict=True)
        ]
        self.leaves: list[Tensor] = [x for x, place in zip(made, self.places, strict=True) if place]
        if not self.leaves:
            raise AutogradError("no floating-point array is among the arguments to differentiate")
        self.arguments = list(args)
        for k, tree in zip(numbers, self._rebuild(made), strict=True):
            self.arguments[k] = tree

    def like_arguments(self, found: Sequence[Tensor]) -> Any:
        """Returns trees like the arguments: `found` at differentiated leaves, None at others."""
        waiting = iter(found)
        trees = self._rebuild([next(waiting) if place else None for place in self.places])
        return trees[0] if self._alone else tuple(trees)


def _as_given(x: Any) -> Any:
    """Returns an array or a number as a Tensor, anything else unchanged."""
    if isinstance(x, (Tensor, bool, np.bool_)):
        return x
    return Tensor(x) if is_array(x) or isinstance(x, (float, complex, np.inexact)) else x


def _leaf(x: Any, *, connected: bool = False) -> Tensor:
    """Returns the values of `x` as a Tensor with a new place in the graph."""
    if connected and isinstance(x, Tensor) and x.requires_grad:
        with enable_grad():
            view: Tensor = ops.reshape(x, to=x.shape)
        return view
    return Tensor(x, requires_grad=True)


def _kept(create_graph: bool) -> Callable[[Any], Any]:
    return lambda x: x.detach() if isinstance(x, Tensor) and not create_graph else x


def _gradients(
    outputs: Sequence[Any],
    inputs: Sequence[Tensor],
    given: Sequence[Any],
    *,
    create_graph: bool,
    retain_graph: bool = True,
) -> list[Tensor]:
    """Returns the gradient of each input; zeros if no output depends on it."""
    pairs = [
        (y, g)
        for y, g in zip(outputs, given, strict=True)
        if isinstance(y, Tensor) and y.requires_grad
    ]
    found: Sequence[Tensor | None] = [None] * len(inputs)
    if pairs:
        found = grad(
            [y for y, _ in pairs],
            inputs,
            [g for _, g in pairs],
            retain_graph=retain_graph or create_graph,
            create_graph=create_graph,
            allow_unused=True,
        )
    return [
        Tensor(namespace(x.data).zeros_like(x.data)) if g is None else g
        for x, g in zip(inputs, found, strict=True)
    ]


def _rows(y: Any, inputs: Sequence[Tensor], *, create_graph: bool) -> list[Tensor]:
    """Returns the Jacobian of one output, one Tensor for each input."""
    if not isinstance(y, Tensor):
        raise AutogradError(f"jacobian needs Tensors as outputs, not {type(y)}")
    if y.dtype.kind == "c":  # a function that is not holomorphic has two slopes
        raise AutogradError(
            "jacobian of complex outputs; give their real and their imaginary part as outputs, "
            "or use jvp or hvp"
        )
    xp = namespace(y.data)
    rows = []
    for k in range(y.size):
        unit = xp.zeros(y.size, dtype=y.dtype)
        unit[k] = 1
        rows.append(_gradients([y], inputs, [unit.reshape(y.shape)], create_graph=create_graph))
    with enable_grad():
        return [_stacked([row[i] for row in rows], y, x) for i, x in enumerate(inputs)]


def _stacked(rows: Sequence[Tensor], y: Tensor, x: Tensor) -> Tensor:
    shape = (*y.shape, *x.shape)
    if not rows:
        return Tensor(namespace(x.data).zeros(shape, dtype=x.dtype))
    stacked: Tensor = ops.reshape(ops.stack(*rows, axis=0), to=shape)
    return stacked


def _check_count(name: str, what: str, expected: Sequence[Any], given: Sequence[Any]) -> None:
    if len(given) != len(expected):
        raise AutogradError(f"{name} of {len(expected)} {what} was given {len(given)} directions")
