"""`grad`, which returns gradients instead of accumulating them, and the trees that it takes.

A tree is a nest of dicts, lists, tuples, named tuples and dataclasses; its leaves may be anything.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from typing import Any, Literal, TypeAlias, final, overload

import numpy as np

from telegrad.arrays import Streams, namespace
from telegrad.autograd.graph.grad_mode import enable_grad
from telegrad.autograd.graph.graph_task import GraphTask, is_sole
from telegrad.autograd.graph.node import Edge
from telegrad.autograd.tensor.row_sparse import is_row_sparse
from telegrad.autograd.tensor.tensor import Gradient, Tensor, edge_of, graph_root, holding
from telegrad.errors import AutogradError

# -- trees ---------------------------------------------------------------------------------------

Rebuild: TypeAlias = "Callable[[Iterable[Any]], Any]"
"""A function that makes a tree of the same structure with other leaves in the same order."""


def flatten(tree: Any) -> tuple[list[Any], Rebuild]:
    """Returns the leaves of `tree`, and a function that builds the same tree of other leaves.

    Branches are dicts, lists, tuples, named tuples and instances of dataclasses; None has no
    leaves. Dicts keep the order of their keys. A dataclass is built again without its `__init__`.

    >>> leaves, rebuild = flatten({"a": 1, "b": (2, [3, None])})
    >>> leaves, rebuild([4, 5, 6])
    ([1, 2, 3], {'a': 4, 'b': (5, [6, None])})
    """
    leaves = list(_leaves(tree))

    def rebuild(others: Iterable[Any]) -> Any:
        remaining = iter(others)
        return tree_map(lambda _: next(remaining), tree)

    return leaves, rebuild


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    """Returns a copy of `tree` with `function(leaf)` in place of each leaf.

    >>> tree_map(lambda x: x + 1, {"a": 1, "b": [2, 3]})
    {'a': 2, 'b': [3, 4]}
    """
    if not is_branch(tree):
        return function(tree)
    children = [tree_map(function, child) for child in _children(tree)]
    if tree is None:
        return None
    if isinstance(tree, dict):
        copied = copy.copy(tree)  # keeps the type and its state, such as a default factory
        copied.update(zip(tree, children, strict=True))
        return copied
    if isinstance(tree, (list, tuple)):
        kind: Any = type(tree)
        named = isinstance(tree, tuple) and kind is not tuple
        return kind(*children) if named else kind(children)
    made = object.__new__(type(tree))
    for each, child in zip(dataclasses.fields(tree), children, strict=True):
        object.__setattr__(made, each.name, child)  # works on frozen dataclasses, too
    return made


def is_branch(tree: Any) -> bool:
    """Returns True if `tree` is a branch, not a leaf."""
    return (
        tree is None
        or isinstance(tree, (dict, list, tuple))
        or (dataclasses.is_dataclass(tree) and not isinstance(tree, type))
    )


def _children(tree: Any) -> list[Any]:
    if tree is None:
        return []
    if isinstance(tree, dict):
        return list(tree.values())
    if isinstance(tree, (list, tuple)):
        return list(tree)
    return [getattr(tree, each.name) for each in dataclasses.fields(tree)]


def _leaves(tree: Any) -> Iterator[Any]:
    if not is_branch(tree):
        yield tree
        return
    for child in _children(tree):
        yield from _leaves(child)


# -- gradients with respect to chosen tensors ----------------------------------------------------


@overload
def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Gradient | Sequence[Gradient | None] | None = None,
    *,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: Literal[False] = False,
) -> tuple[Tensor, ...]: ...


@overload
def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Gradient | Sequence[Gradient | None] | None = None,
    *,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool,
) -> tuple[Tensor | None, ...]: ...


@overload
def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    *,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool = False,
) -> Any: ...


def grad(
    outputs: Any,
    inputs: Any = None,
    grad_outputs: Any = None,
    *,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool = False,
) -> Any:
    """Returns the gradients of `outputs` with respect to `inputs`; changes no `Tensor.grad`.

    It runs only the nodes between the two.

    Args:
        outputs: One or several roots; a tree of them (dicts, lists, tuples, dataclasses).
        inputs: Leaves or results that need a gradient; a tree of them.
        grad_outputs: One gradient per output, in its shape; None for a scalar means 1.
        retain_graph: True to keep the graph for another backward; None means `create_graph`.
        create_graph: True to record the backward, so that the results can be differentiated.
        allow_unused: True to return None for an input that no output depends on.

    Returns:
        One gradient per input, in its shape and dtype: a tuple for one Tensor and for a list or
        tuple of them, else a tree like `inputs`.

    Raises:
        AutogradError: An input needs no gradient, no output depends on it, or `backward` would
            raise.
        TypeError: `outputs` is a function, or there are no inputs.

    >>> from telegrad.autograd import tensor
    >>> x = tensor(3.0, requires_grad=True)
    >>> (slope,) = grad(x**3, x, create_graph=True)
    >>> slope.item(), grad(slope, x)[0].item()
    (27.0, 18.0)
    """
    if inputs is None or (callable(outputs) and not isinstance(outputs, Tensor)):
        raise TypeError(
            "grad takes Tensors, grad(outputs, inputs), and returns their gradients; for the "
            "gradient of a function f write value_and_grad(f)(x)[1], or elementwise_grad(f)(x)"
        )
    roots, _ = tensors_in(outputs)
    wanted = Wanted(inputs)
    given = gradients_of_roots(grad_outputs, len(roots))
    task = GraphTask(
        [
            graph_root(root, g, create_graph=create_graph)
            for root, g in zip(roots, given, strict=True)
        ],
        accumulate=_nothing,
        retain_graph=create_graph if retain_graph is None else retain_graph,
        create_graph=create_graph,
        captures=wanted.edges,
    )
    task.run()
    return wanted.answer(task.captured, allow_unused=allow_unused, streams=task.streams)


@final
class Wanted:
    """The inputs of one `grad` call, and the structure of its result.

    Args:
        inputs: The inputs, as for `grad`.

    Raises:
        AutogradError: An input is not a Tensor, or needs no gradient.

    Attributes:
        edges: The edges of the graph at which the gradients of the inputs arrive.
    """

    def __init__(self, inputs: Any) -> None:
        tensors, self._rebuild = tensors_in(inputs)
        leaves: Sequence[Any] = tensors  # the leaves of a tree may be anything
        self.edges: list[Edge] = []
        for i, x in enumerate(leaves):
            edge = edge_of(x) if isinstance(x, Tensor) else None
            if edge is None:
                raise _no_edge(x, i)
            self.edges.append(edge)

    def answer(
        self,
        captured: MutableMapping[Edge, Gradient],
        *,
        allow_unused: bool,
        streams: Streams | None = None,
    ) -> Any:
        """Returns the gradients that arrived at `edges`, in a tree like that of the inputs.

        Args:
            captured: The gradients by edge. This method empties it: a gradient with no other
                reference is then handed out without a copy.
            allow_unused: True to allow inputs without a gradient.
            streams: The CUDA streams of the pass; None if it has none. The current ones go on
                behind them.

        Raises:
            AutogradError: An input got no gradient, and `allow_unused` is False.
        """
        if streams is not None:
            with streams.entered():
                answered = self.answer(captured, allow_unused=allow_unused)
            streams.wait()
            return answered
        found: list[Any] = [captured.get(edge) for edge in self.edges]
        captured.clear()
        unused = [i for i, g in enumerate(found) if g is None]
        if unused and not allow_unused:
            raise AutogradError(
                f"no gradient reached inputs {unused}: the outputs do not depend on them; "
                "pass allow_unused=True to get None for these"
            )
        for i in range(len(found)):
            held, found[i] = [found[i]], None
            if held[0] is not None:
                found[i] = holding(held[0]) if is_sole(held) else own_gradient(held[0])
        return self._rebuild(found)


def tensors_in(tree: Any) -> tuple[list[Tensor], Rebuild]:
    """Returns the Tensors of `tree`, and a function that builds the result: a tuple if flat."""
    if isinstance(tree, Tensor):
        return [tree], tuple
    if isinstance(tree, (list, tuple)):
        for x in tree:  # a loop, because a generator takes three times as long
            if not isinstance(x, Tensor):
                return flatten(tree)
        return list(tree), tuple
    if is_branch(tree):
        return flatten(tree)
    return list(tree), tuple  # an iterator, for example module.parameters()


def gradients_of_roots(
    gradients: Gradient | Sequence[Gradient | None] | None, count: int
) -> Sequence[Gradient | None]:
    """Returns one gradient, or None, for each of `count` roots.

    Raises:
        AutogradError: The number of gradients is not `count`.
    """
    if gradients is None:
        return [None] * count
    if isinstance(gradients, (list, tuple)):
        if len(gradients) != count:
            raise AutogradError(
                f"{count} roots were given {len(gradients)} gradients; give one for each, None "
                "where a scalar's is 1"
            )
        return gradients
    if count != 1:
        raise AutogradError(f"{count} roots were given one gradient; pass a list")
    return [gradients]  # type: ignore[list-item]


def _no_edge(x: Any, i: int) -> AutogradError:
    if not isinstance(x, Tensor):
        return AutogradError(f"input {i} must be a Tensor, not {type(x).__name__}")
    return AutogradError(f"input {i} of shape {x.shape} needs no gradient")


def own_gradient(gradient: Gradient) -> Tensor:
    """Returns a gradient that belongs to the user: a copy if the engine may share the array."""
    if type(gradient) is np.ndarray:
        return holding(gradient.copy("K"))
    if isinstance(gradient, Tensor):
        with enable_grad():
            return gradient.copy()
    if is_row_sparse(gradient):
        return gradient.copy()  # type: ignore[return-value]
    return Tensor(namespace(gradient).array(gradient))


def _nothing(tensor: Tensor, gradient: Gradient) -> None:
    """Does nothing: a graph task that captures gradients does not accumulate any."""
