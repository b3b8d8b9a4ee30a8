"""A part of the forward that keeps no values: the backward computes them again.

    forward    f runs and is recorded as ever; each node's saved values are dropped at once
    backward   the first of these nodes to run has f run once more, recorded into nodes that are
               thrown away, and every node takes what its double has saved

The graph is the one of the first run, so hooks, gradients of gradients and graphs that lead to other
workers know nothing of it. Memory: the arguments, the results, and parameters as they were. (Chen,
Xu, Zhang, Guestrin: Training Deep Nets with Sublinear Memory Cost, 2016, arXiv:1604.06174.)
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, ParamSpec, TypeVar, final

from telegrad.autograd.differentiate import flatten
from telegrad.autograd.generator import repeatable
from telegrad.autograd.graph.grad_mode import (
    Watcher,
    enable_grad,
    is_grad_enabled,
    watched_by,
    watchers,
)
from telegrad.autograd.graph.node import Edge, Node, Value
from telegrad.autograd.graph.operation import SavingNode, Segment, refuse_changed
from telegrad.autograd.tensor.tensor import Tensor, attach
from telegrad.errors import AutogradError

__all__ = ["recompute"]

P = ParamSpec("P")
R = TypeVar("R")


def recompute(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Returns `function(*args, **kwargs)`; its backward computes the values in between again.

    Trades time for memory: the forward of `function` runs twice. The second run draws the same
    random numbers from the generator of `manual_seed`; it is to do the same otherwise, too: to
    call no other worker and to change nothing outside. It may be nested, in several threads, and
    be differentiated any number of times.

    Args:
        function: What is computed; parameters that it uses need not be arguments.
        args: Passed on; Tensors may stand in lists, tuples, dicts and dataclasses.
        kwargs: Passed on.

    Raises:
        AutogradError: In the backward: the second run did something else than the first, or an
            argument or a parameter was changed in between.

    >>> from telegrad.autograd import tensor
    >>> import numpy as np
    >>> x = tensor([0.0, 1.0], requires_grad=True)
    >>> recompute(lambda x: np.exp(x) * x, x).sum().backward()
    >>> x.grad.data.round(3).tolist()
    [1.0, 5.437]
    """
    if not is_grad_enabled() or any(isinstance(watcher, _Segment) for watcher in watchers()):
        return function(*args, **kwargs)  # inside another one, which computes all of it again
    segment = _Segment(function, (args, kwargs))
    with repeatable() as state, watched_by(*watchers(), segment):
        result = function(*args, **kwargs)
    segment.recorded_with(state)
    return result


@final
class _Segment(Watcher, Segment):
    """The nodes of one recomputed function, and how to compute again what they have saved."""

    def __init__(self, function: Callable[..., Any], arguments: Any) -> None:
        leaves, self._rebuild = flatten(arguments)
        self._function: Callable[..., Any] | None = function
        self._arguments = [_Argument(x) if isinstance(x, Tensor) else x for x in leaves]
        # Weak: the nodes keep the segment.
        self._nodes: list[weakref.ref[SavingNode]] = []
        self._doubled: list[tuple[str, tuple[Any, ...]]] = []
        self._state: Any = None
        self._complete = False
        self._lock = threading.Lock()

    def recorded(self, node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Drops what `node` saved, but for what leaves hold anyway."""
        # Complete: a task that copied this context goes on, and its nodes are none of this.
        if isinstance(node, SavingNode) and not self._complete:
            self._nodes.append(weakref.ref(node))
            self._doubled.append((node.name, node.saved_leaves()))
            node.drop_saved(self)

    def recorded_with(self, state: Any) -> None:
        """Ends the forward, which began with this state of the random numbers."""
        self._state = state
        self._complete = True

    def compute(self) -> None:
        """Computes again what the nodes have saved, the first time that it is called.

        Raises:
            AutogradError: The forward is not over, or what it used was changed since.
        """
        if not self._complete:
            raise AutogradError(
                "a backward inside a recomputed function meets what that function has computed, "
                "and whose values were dropped; call recompute() inside the function that the backward goes through"
            )
        with self._lock:
            function = self._function
            if function is None:
                return
            args, kwargs = self._rebuild([_restored(x) for x in self._arguments])
            doubles = _Doubles()
            with enable_grad(), repeatable(self._state), watched_by(doubles):
                function(*args, **kwargs)
            self._hand_over(doubles)
            self._function = None
            self._arguments, self._nodes, self._doubled = [], [], []

    def replace(self, nodes: Mapping[Node | None, SavingNode]) -> None:
        """Puts others in the place of this segment's nodes: the keys are those of now."""
        self._nodes = [
            weakref.ref(nodes[node]) if (node := each()) in nodes else each for each in self._nodes
        ]

    def _hand_over(self, doubles: _Doubles) -> None:
        found = [node.name for node, _ in doubles.nodes]
        expected = [name for name, _ in self._doubled]
        if found != expected:
            _refuse_difference(found, expected)
        for (_, now), (name, before) in zip(doubles.nodes, self._doubled, strict=True):
            _check_leaves(name, before, now)
        places: dict[Node | None, SavingNode] = {}
        inner: set[Segment] = set()
        for held, (double, _) in zip(self._nodes, doubles.nodes, strict=True):
            node = held()
            if node is not None:  # else that part of the graph is gone
                places[double] = node
                node.take_saved(double)
                if double.segment is not None:
                    inner.add(double.segment)
        for segment in inner:
            segment.replace(places)


@final
class _Doubles(Watcher):
    """Keeps the nodes of the second run."""

    def __init__(self) -> None:
        self.nodes: list[tuple[SavingNode, tuple[Any, ...]]] = []

    def recorded(self, node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Keeps `node`."""
        if isinstance(node, SavingNode):
            self.nodes.append((node, node.saved_leaves()))


@final
class _Argument:
    """A Tensor as it was given: its array, and its place in the graph."""

    def __init__(self, tensor: Tensor) -> None:
        self.value: Value = tensor.value
        self.version = tensor.value.version
        self.edge: Edge | None = tensor.edge


def _restored(argument: Any) -> Any:
    if not isinstance(argument, _Argument):
        return argument
    value, edge = argument.value, argument.edge
    if value.version != argument.version:
        refuse_changed(value, argument.version, "recompute", "an argument")
    if edge is None:
        return attach(value.array, None, memory=value)
    return attach(value.array, *edge, memory=value)


def _check_leaves(name: str, before: tuple[Any, ...], now: tuple[Any, ...]) -> None:
    for one, other in zip(before, now, strict=True):
        if one is None or other is None:
            continue
        (value, version), (current, _) = one, other
        if current.array is not value.array:
            raise AutogradError(
                f"a parameter of shape {value.array.shape} that {name!r} used in recompute() has "
                "got other values since; run the backward before the optimizer's step"
            )
        if current.version != version:
            refuse_changed(value, version, name, "a parameter")


def _refuse_difference(found: list[str], expected: list[str]) -> NoReturn:
    same = 0
    while same < min(len(found), len(expected)) and found[same] == expected[same]:
        same += 1
    first = expected[same] if same < len(expected) else "nothing more"
    second = found[same] if same < len(found) else "nothing more"
    raise AutogradError(
        f"a recomputed function did not do the same again: operation {same} was {first!r} and is "
        f"now {second!r}; it may depend on nothing but its arguments and unchanged values"
    )
