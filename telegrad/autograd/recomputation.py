"""`recompute`, which drops the values of a part of the forward and computes them again later.

    forward    the function runs and is recorded as usual; each node drops its saved values at once
    backward   the first of these nodes to run calls the function again and records other nodes;
               each node takes the saved values of its double, and the doubles are dropped

A function passed to `once` is called in the first of these runs alone, and its result is kept.

The graph is that of the first run. Hooks, gradients of gradients and graphs that lead to other
workers therefore need no special case. The arguments, the results and the arrays of parameters stay
in memory. (Chen, Xu, Zhang, Guestrin: Training Deep Nets with Sublinear Memory Cost, 2016,
arXiv:1604.06174.)
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, ParamSpec, TypeVar, final

from telegrad.autograd.differentiate import tree_map
from telegrad.autograd.generator import current_generator, repeatable
from telegrad.autograd.graph.autocast import casting_dtype, casting_in
from telegrad.autograd.graph.call_node import CallNode, refuse_changed
from telegrad.autograd.graph.grad_mode import (
    ENABLED,
    Watched,
    is_grad_enabled,
    setting,
    watched_by,
    watchers,
)
from telegrad.autograd.graph.node import Edge, Node, Value
from telegrad.autograd.tensor.tensor import Tensor, edge_of, made_of
from telegrad.errors import AutogradError

P = ParamSpec("P")
R = TypeVar("R")


def recompute(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Returns `function(*args, **kwargs)`; the backward computes the intermediate values again.

    This trades time for memory: the forward of `function` runs twice. The second run draws the same
    random numbers from the generator of `manual_seed`. `function` must do the same in both runs
    otherwise, too: it must not call other workers or change anything outside. Calls may be
    nested, run in several threads, and be differentiated any number of times.

    Args:
        function: The function to run; parameters that it uses need not be arguments.
        args: Its positional arguments; Tensors may be inside lists, tuples, dicts and dataclasses.
        kwargs: Its keyword arguments; Tensors may be inside them, too.

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
        return function(*args, **kwargs)  # the outer call computes all of it again
    segment = _Segment(function, (args, kwargs))
    watched = setting(ENABLED, watched_by(*watchers(), segment, enabled=True))
    with repeatable() as state, watched, casting_in(casting_dtype()):
        result = function(*args, **kwargs)
    segment.recorded_with(state)
    return result


def once(function: Callable[[], R]) -> R:
    """Returns `function()`; the second run of `recompute` gets the first result without a call.

    It is for state that a forward changes: running statistics, counters, draws from a generator of
    one's own. Operations inside keep what they save, since they do not run again. Without
    `recompute` this is a call.

    >>> from telegrad.autograd import recompute, tensor
    >>> import numpy as np
    >>> seen = []
    >>> def counted(x):
    ...     once(lambda: seen.append(x.shape))
    ...     return np.exp(x)
    >>> recompute(counted, tensor([0.0, 1.0], requires_grad=True)).sum().backward()
    >>> seen
    [(2,)]
    """
    runs = [each for each in watchers() if isinstance(each, (_Segment, _Again)) and each.running]
    if not runs:
        return function()
    result: R
    if isinstance(runs[0], _Again):
        result = runs[0].next_result()
    else:
        others = [each for each in watchers() if each not in runs]
        with setting(ENABLED, watched_by(*others, enabled=is_grad_enabled())):
            result = function()
    if isinstance(runs[-1], _Segment):  # the second run of an outer call may hold a first one
        runs[-1].keep_result(result)
    return result


@final
class _Segment:
    """The nodes of one recomputed function, and the call that computes their saved values again."""

    def __init__(self, function: Callable[..., Any], arguments: Any) -> None:
        self._function: Callable[..., Any] | None = function
        # A tree of its own: the caller may change its lists, and drop its Tensors.
        self._arguments = tree_map(_kept, arguments)
        # Weak references, because the nodes keep the segment alive.
        self._nodes: list[weakref.ref[CallNode]] = []
        self._doubled: list[tuple[str, tuple[Any, ...]]] = []
        self._results: list[tuple[Any, Any]] = []  # of `once`, and the generator's state behind it
        self._state: Any = None
        self._casting = casting_dtype()
        self.running = True  # in the first run
        self._lock = threading.Lock()

    def __call__(self, node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Drops the values that `node` saved, except those that leaves keep alive anyway."""
        # Once the first run is over, a task that copied this context may still record nodes. They
        # do not belong to this segment.
        if isinstance(node, CallNode) and self.running:
            self._nodes.append(weakref.ref(node))
            self._doubled.append((node.name, node.saved_leaves()))
            node.drop_saved(self)

    def keep_result(self, result: Any) -> None:
        """Keeps the result of a function that the second run does not call."""
        self._results.append((result, current_generator().bit_generator.state))

    def recorded_with(self, state: Any) -> None:
        """Ends the forward; `state` is the generator's state at its start."""
        self._state = state
        self.running = False

    def compute(self) -> None:
        """Computes again the values that the nodes have saved; later calls do nothing.

        Raises:
            AutogradError: The forward is not over, or a value that it used was changed since.
        """
        if self.running:
            raise AutogradError(
                "a backward inside a recomputed function reached its own nodes, whose values were "
                "dropped; call recompute() inside the part that this backward differentiates"
            )
        with self._lock:
            function = self._function
            if function is None:
                return
            args, kwargs = tree_map(_restored, self._arguments)
            again = _Again(self._results)
            watched = setting(ENABLED, Watched(True, (again,)))
            with repeatable(self._state), watched, casting_in(self._casting):
                function(*args, **kwargs)
            again.running = False
            self._hand_over(again.doubles)
            self._function = None
            self._arguments, self._nodes, self._doubled, self._results = None, [], [], []

    def replace(self, nodes: Mapping[Node | None, CallNode]) -> None:
        """Replaces nodes of this segment: keys are the present nodes, values the new ones."""
        self._nodes = [
            weakref.ref(nodes[node]) if (node := each()) in nodes else each for each in self._nodes
        ]

    def _hand_over(self, doubles: list[tuple[CallNode, tuple[Any, ...]]]) -> None:
        found = [node.name for node, _ in doubles]
        expected = [name for name, _ in self._doubled]
        if found != expected:
            _refuse_difference(found, expected)
        for (_, now), (name, before) in zip(doubles, self._doubled, strict=True):
            _check_leaves(name, before, now)
        # A node that nothing refers to any more is gone, and so is that part of the graph.
        pairs = [
            (node, double)
            for held, (double, _) in zip(self._nodes, doubles, strict=True)
            if (node := held()) is not None
        ]
        places: dict[Node | None, CallNode] = {double: node for node, double in pairs}
        # A segment inside knows its nodes before one of them leads to it: from then on another
        # thread's backward may have it compute.
        for segment in {double.segment for _, double in pairs} - {None}:
            segment.replace(places)
        for node, double in pairs:
            node.take_saved(double)


@final
class _Again:
    """The nodes of a second run, and the results of the first one that it takes over.

    Args:
        results: Those results in order, each with the state in which it left the generator.
    """

    def __init__(self, results: Sequence[tuple[Any, Any]]) -> None:
        self.doubles: list[tuple[CallNode, tuple[Any, ...]]] = []
        self.running = True
        self._results = iter(results)

    def __call__(self, node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Notes a node, before a segment inside drops what it saved."""
        if isinstance(node, CallNode):
            self.doubles.append((node, node.saved_leaves()))

    def next_result(self) -> Any:
        """Returns the next result, and moves the generator to where its function left it."""
        for result, state in self._results:
            current_generator().bit_generator.state = state
            return result
        raise AutogradError(
            "a recomputed function called once() more often than in its first run; it may depend "
            "only on its arguments and on unchanged values"
        )


@final
class _Argument:
    """A Tensor argument of the first run: its array, and its place in the graph."""

    def __init__(self, tensor: Tensor) -> None:
        self.value: Value = tensor._value
        self.version = tensor._value.version
        self.edge: Edge | None = edge_of(tensor)


def _kept(argument: Any) -> Any:
    return _Argument(argument) if isinstance(argument, Tensor) else argument


def _restored(argument: Any) -> Any:
    if not isinstance(argument, _Argument):
        return argument
    value = argument.value
    if value.version != argument.version:
        refuse_changed(value, argument.version, "recompute", "an argument")
    return made_of(Value(value.array, value), argument.edge)


def _check_leaves(name: str, before: tuple[Any, ...], now: tuple[Any, ...]) -> None:
    for one, other in zip(before, now, strict=True):
        if one is None or other is None:
            continue
        (value, version), (current, _) = one, other
        if current.array is not value.array:
            raise AutogradError(
                f"a parameter of shape {value.array.shape} that {name!r} used in recompute() has "
                "new values since the forward; run the backward before the optimizer's step"
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
        f"now {second!r}; it may depend only on its arguments and on unchanged values"
    )
