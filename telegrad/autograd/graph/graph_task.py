"""One backward run through the graph, into which gradients may also be fed from outside, later.

A task counts, for each node that it reaches, the edges that lead to the node. A node is ready when
each of these edges has delivered its gradient *or none*. A node passes none on like a gradient, so
the counts reach zero whichever edges carry gradients:

    source fed (g, None) ──► A ──g──► C     C waits for two, gets g and none: runs with g
                              └none─► D     D gets nothing but none: its rule does not run,
                                             nothing is freed, D passes none on
                                      sink   gets `sink(node, None)`: it can tell the other side

On GPUs a task runs in the streams that made its roots and sources, in whatever thread it runs; if
these are on the host, in the streams of the next nodes. Events order the streams
(`telegrad.arrays.streams`).

Counts, buffers and results belong to the task, so several tasks may run through the same nodes.
Ready nodes are kept as a stack, so gradients of leaves are ready as early as possible.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence, Set
from queue import SimpleQueue
from sys import getrefcount
from typing import Any, Final, TypeAlias, final

import numpy as np

from telegrad.arrays import (
    Place,
    Streams,
    current_place,
    has_cupy,
    is_array,
    is_cupy,
    namespace,
    owns_memory,
)
from telegrad.autograd.graph.autocast import CASTING
from telegrad.autograd.graph.call_node import CallNode
from telegrad.autograd.graph.grad_mode import ENABLED, set_mode
from telegrad.autograd.graph.node import Edge, Node, Sink
from telegrad.autograd.tensor.row_sparse import is_row_sparse
from telegrad.autograd.tensor.tensor import Accumulate, AccumulateGrad, Gradient, Gradients, Tensor
from telegrad.errors import AutogradError

LeftOut: TypeAlias = "tuple[Any, Any, Sequence[int]]"
"""A node, its gradients and the inputs whose rules are left out; or an edge and its gradient."""

_SOLE: Final = 2
"""What `getrefcount` returns for an object that one list or array alone holds.

It counts that holder, and its own argument.
"""


@final
class GraphTask:
    """One run that carries gradients from roots and sources to leaves and sinks.

    No rule runs before `run`. Any thread may call `feed` and `run`. The task calls `accumulate`
    and `sink` in the thread that runs it, one call at a time.

    Args:
        roots: The edges where gradients start, with the gradients that are known now.
        accumulate: Function called exactly once for each leaf that a real gradient reaches. It
            gets the leaf and the whole gradient in the leaf's shape and dtype. It may keep the
            array: nothing else holds the array or its memory.
        sources: Nodes whose output gradients come later, each by exactly one `feed`.
        retain_graph: Keeps the values that the rules saved. Without it, the task releases each
            node that a real gradient went through.
        create_graph: Records the rules. Roots and fed gradients are then Tensors.
        sink: Function called exactly once for each `Sink` that is reached. None: a sink is an
            error.
        captures: Edges whose gradients `captured` shall hold. If given, only nodes that lead to
            these edges run, and no leaf accumulates. With `sink`, nodes that lead to sinks run
            too, because beyond a sink a path may lead back to a source.
        later: Gets the work that `captures` leaves out, for the second half of a backward that
            runs in halves; see `halves`.

    Attributes:
        captured: The gradients of `captures` that have come.
        streams: The CUDA streams of the task; None if it does not run on a GPU.
        remaining: The number of nodes that are not yet processed.

    Raises:
        AutogradError: A sink is reached and `sink` is None; no rule has run.
    """

    def __init__(
        self,
        roots: Sequence[tuple[Edge, Gradient]],
        *,
        accumulate: Accumulate,
        sources: Sequence[Node] = (),
        retain_graph: bool = False,
        create_graph: bool = False,
        sink: Callable[[Sink, Gradients | None], None] | None = None,
        captures: Sequence[Edge] | None = None,
        later: list[LeftOut] | None = None,
    ) -> None:
        self.captured: dict[Edge, Gradient] = {}
        self._accumulate = accumulate
        self._retain_graph = retain_graph
        self._create_graph = create_graph
        self._sink = sink
        self._captures = frozenset(captures or ())
        self._later = later
        starts: dict[Node, None] = {}
        for edge, _ in roots:
            starts[edge[0]] = None
        for source in sources:
            starts[source] = None
        self._waiting, last = _count_edges(starts)
        self.streams = _streams_of(roots, self._waiting) if has_cupy() else None
        self._released: list[Node] | None = None
        if self.streams is not None:
            self.streams.lend_here([gradient for _, gradient in roots])
            if self.streams.several:  # a node may free memory of another stream than the task's
                self._released = []
        # The nodes of captures, and sinks: all other nodes of this task lead to one of these.
        self._targets = None if captures is None else {node for node, _ in captures}
        if self._targets is not None:
            if sink is not None:
                self._targets.update([node for node in last if isinstance(node, Sink)])
            if not self._targets.issuperset(last):
                self._waiting = _leading_to(self._targets, self._waiting)
        self.remaining = len(self._waiting)
        if sink is None:
            self._refuse_sinks(last)
        self._buffers: dict[Node, list[Gradient | None]] = {}
        self._unfed: dict[Node, bool] = {}  # the sources; True if the task reaches a target by it
        for source in sources:
            leads_on = self._unfed[source] = source in self._waiting
            if leads_on:
                self._waiting[source] += 1
        for edge, gradient in roots:
            self._add(edge, gradient)
        self._ready: list[Node] = []
        for node in starts:
            if self._waiting.get(node) == 0:
                self._ready.append(node)
        self._inbox: SimpleQueue[tuple[Node, Gradients | None]] = SimpleQueue()
        self._running = threading.Lock()  # held by the thread that runs
        self._stopped = False

    @property
    def done(self) -> bool:
        """True if the task has processed every reachable node."""
        return self.remaining == 0

    @property
    def dry(self) -> bool:
        """True if no node can be processed now, except the one that is being processed."""
        return not self._ready and self._inbox.empty()

    @property
    def reachable(self) -> Set[Node]:
        """The nodes of this task's graph, which lead from roots and sources to leaves and sinks."""
        return self._waiting.keys()

    def feed(self, node: Node, gradients: Gradients | None) -> None:
        """Queues the gradients of a source's outputs; `run` processes them.

        Args:
            node: One of `sources`, not fed before.
            gradients: One gradient per output of `node`, or None if no output got one.

        Raises:
            AutogradError: `node` is no source or was fed before, or the number of gradients is
                not the number of its outputs.
        """
        if gradients is not None and len(gradients) != node.num_outputs:
            raise AutogradError(
                f"{node.name} has {node.num_outputs} outputs and was fed {len(gradients)} gradients"
            )
        leads_on = self._unfed.pop(node, None)  # in one step, as several threads may feed
        if leads_on is None:
            raise AutogradError(f"{node.name} is no source of this graph task, or was fed twice")
        if leads_on:
            self._inbox.put((node, gradients))

    def run(self) -> bool:
        """Processes ready nodes until the task is done or the rest waits for a `feed`.

        One thread at a time runs the task. If a second thread calls this meanwhile, it returns at
        once, and the first thread processes the gradients that the second one fed. So each feeder
        calls `run` after `feed`, and no feeder waits.

        Returns:
            True if every reachable node is processed. Several threads may get True.

        Raises:
            Exception: A rule, a hook, `accumulate` or `sink` raised this error in this thread;
                the task has then stopped as by `abort`.
        """
        inbox = self._inbox
        while self._running.acquire(blocking=False):
            try:
                if self.streams is None:
                    self._work()
                else:
                    self._work_on_streams(self.streams)
            except BaseException:
                self._stopped = True
                raise
            finally:
                self._running.release()
            # A feeder that found the lock taken had queued its gradients before: look again.
            if self._stopped or inbox.empty():
                break
        return self.remaining == 0

    def _work_on_streams(self, streams: Streams) -> None:
        over = True  # after an error, too
        try:
            with streams.entered():
                self._work()
            over = self._stopped or not self.remaining
        finally:
            if over:
                streams.finish()
                while self._released:
                    self._released.pop().release()
            streams.wait()  # as the caller's next work may read gradients

    def _work(self) -> None:
        inbox, before = self._inbox, set_mode(self._create_graph)
        casting = CASTING.set(None)  # the dtypes are those of the forward
        try:
            while not self._stopped and (self._ready or (not inbox.empty() and self._take_fed())):
                self._process_ready()
        finally:
            CASTING.reset(casting)
            ENABLED.reset(before)

    def abort(self) -> None:
        """Stops the task before its next node and frees nothing. Legal at any time."""
        self._stopped = True
        if self.streams is not None:
            self.streams.finish()

    def _take_fed(self) -> bool:
        ready, inbox = self._ready, self._inbox
        while not ready:
            if inbox.empty():
                return False
            node, gradients = inbox.get_nowait()  # only the running thread takes: still not empty
            for output, gradient in enumerate(gradients or ()):
                if gradient is not None:
                    self._add((node, output), gradient)
            self._waiting[node] = count = self._waiting[node] - 1
            if not count:
                ready.append(node)
        return True

    def _process_ready(self) -> None:
        # This runs once for each operation, so it calls only functions that most nodes need.
        ready, waiting, buffers = self._ready, self._waiting, self._buffers
        targets, release, later = self._targets, not self._retain_graph, self._later
        while ready and not self._stopped:
            node = ready.pop()
            try:
                buffer = buffers.pop(node, None)
                edges = node.edges
                results: Gradients | None = None
                if not edges and node.is_end:
                    self._end(node, buffer)
                elif buffer is not None:
                    gradients = tuple(buffer)
                    if node._hooks is not None:
                        gradients = _call_prehooks(node, gradients, retain=targets is None)
                    if targets is None or node not in targets or self._capture(node, gradients):
                        if later is not None:
                            results = self._first_half(node, gradients, later)
                        else:
                            results = node.backward(gradients)
                            if node._hooks is not None or len(results) != len(edges):
                                results = _call_hooks(node, results, gradients)
                            if release:
                                if self._released is None:
                                    node.release()
                                else:
                                    self._released.append(node)
                    gradients = ()
                for i, edge in enumerate(edges):
                    if edge is None:
                        continue
                    child, output = edge
                    count = waiting.get(child)
                    if count is None:
                        continue
                    result = results[i] if results is not None else None
                    if result is not None:
                        held = buffers.get(child)
                        if held is None:
                            held = buffers[child] = [None] * child.num_outputs
                        if held[output] is None:
                            held[output] = result
                        else:
                            add_to(held, output, result)
                        result = None  # nothing else may hold a leaf's gradient
                    waiting[child] = count - 1
                    if count == 1:
                        ready.append(child)
            except MemoryError as error:
                error.add_note(f"no memory was left in the backward of {node.name!r}")
                raise
            # Counted last: a thread that sees `done` must find all leaves and sinks called.
            self.remaining -= 1

    def _first_half(self, node: Node, gradients: Gradients, later: list[LeftOut]) -> Gradients:
        """Runs the rules of the inputs that lead to captures; leaves out the others."""
        edges, waiting = node.edges, self._waiting
        others = [i for i, e in enumerate(edges) if e is not None and e[0] not in waiting]
        if others and type(node) is CallNode and node._plan.splits and node._hooks is None:
            now = [i for i, e in enumerate(edges) if e is not None and e[0] in waiting]
            results = node.backward_of(gradients, now)
            later.append((node, gradients, others))
            return results
        results = _call_hooks(node, node.backward(gradients), gradients)
        later.extend((edges[i], results[i], ()) for i in others if results[i] is not None)
        if not self._retain_graph:
            node.release()
        return results

    def _end(self, node: Node, buffer: list[Gradient | None] | None) -> None:
        local = self._targets is None
        if type(node) is AccumulateGrad:
            if buffer is None:
                return
            tensor = node.tensor
            leaf = tensor._leaf
            if leaf is not None and leaf.hooks is not None:
                buffer = list(_call_prehooks(node, tuple(buffer), retain=local))
            if buffer[0] is None:
                return
            if not local:
                if (node, 0) in self._captures:
                    self.captured[node, 0] = fit_leaf(tensor, buffer[0])
                return
            self._accumulate(tensor, _own_of_leaf(tensor, buffer))
            leaf = tensor._leaf
            if leaf is not None and leaf.post_accumulate is not None:
                for hook in leaf.post_accumulate:
                    hook(tensor, self._accumulate)
        else:
            if buffer is not None and node._hooks is not None:
                buffer = list(_call_prehooks(node, tuple(buffer), retain=local))
            gradients = None if buffer is None else tuple(buffer)
            if gradients is not None and not local:
                self._capture(node, gradients)
            sink: Any = node  # an end that is no leaf is a sink
            if self._sink is not None:
                self._sink(sink, gradients)
                if gradients is not None and node._hooks is not None:
                    _call_hooks(node, (), gradients)

    def _capture(self, node: Node, gradients: Gradients) -> bool:
        """Keeps the captured gradients of a node; returns True if an edge leads on from it."""
        for output, gradient in enumerate(gradients):
            captured = (node, output)
            if gradient is not None and captured in self._captures:
                self.captured[captured] = gradient
        for edge in node.edges:  # noqa: SIM110  a generator is slower, above all for leaves
            if edge is not None and edge[0] in self._waiting:
                return True
        return False

    def _add(self, edge: Edge, gradient: Gradient) -> None:
        node, output = edge
        if node not in self._waiting:
            return
        buffer = self._buffers.get(node)
        if buffer is None:
            buffer = self._buffers[node] = [None] * node.num_outputs
        if buffer[output] is None:
            buffer[output] = gradient
        else:
            add_to(buffer, output, gradient)

    def _refuse_sinks(self, last: Iterable[Node]) -> None:
        for node in last:
            # Leaves first: an isinstance test against the abstract class Sink is ten times slower.
            if isinstance(node, AccumulateGrad) or node not in self._waiting:
                continue
            if isinstance(node, Sink):
                raise AutogradError(node.refusal)


def _streams_of(roots: Sequence[tuple[Edge, Gradient]], nodes: Iterable[Node]) -> Streams | None:
    """Returns the streams that made the roots, or else the next nodes; None if all are NumPy's."""
    made = [place for edge, gradient in roots for place in _places_of_root(edge[0], gradient)]
    made += [place for node in nodes for place in getattr(node, "_made_on", ())]
    return Streams(dict.fromkeys(made)) if made else None


def _places_of_root(node: Node, gradient: Any) -> tuple[Place, ...]:
    """Returns the streams that made a root, or the present one if nothing recorded has made it."""
    made: tuple[Place, ...] = getattr(node, "_made_on", ())
    if made:
        return made
    array = gradient.data if isinstance(gradient, Tensor) else gradient
    array = array.values if is_row_sparse(array) else array
    place = current_place(array)
    return () if place is None else (place,)


def fit_leaf(tensor: Tensor, gradient: Gradient) -> Gradient:
    """Returns `gradient` in the dtype of the leaf `tensor`.

    Raises:
        AutogradError: The gradient's shape is not the leaf's.
    """
    array = tensor._value.array
    if gradient.shape != array.shape:
        raise AutogradError(
            f"a gradient of shape {gradient.shape} reached a leaf of shape {array.shape}"
        )
    return gradient if gradient.dtype == array.dtype else gradient.astype(array.dtype)


def _own_of_leaf(tensor: Tensor, held: list[Any]) -> Gradient:
    """Returns `held[0]` in the leaf's dtype; a copy if something else may hold the array."""
    array = tensor._value.array
    if (
        type(held[0]) is np.ndarray
        and getrefcount(held[0]) == _SOLE
        and held[0].base is None
        and held[0].dtype is array.dtype
        and held[0].shape == array.shape
        and held[0].flags.writeable
    ):
        return held[0]  # the usual case, without a call
    sole, gradient = is_sole(held), held[0]
    fitting = fit_leaf(tensor, gradient)
    if fitting is gradient and not sole and is_array(gradient):
        fitting = namespace(gradient).array(gradient)
    return fitting


def is_sole(held: list[Any]) -> bool:
    """Returns True if only `held` refers to the array `held[0]`, which is all of its memory.

    Views of an array hold it, of NumPy's and CuPy's. The answer is False for memory that another
    library lends, as its loans cannot be seen, and for other arrays. An array of CuPy that a
    program made over the pointer of another one (`memptr=`) does not hold it, and is not seen.
    """
    if getrefcount(held[0]) != _SOLE:
        return False
    if type(held[0]) is np.ndarray:
        if not held[0].flags.writeable:
            return False
    elif not is_cupy(held[0]) or not owns_memory(held[0]):
        return False
    if held[0].base is None:
        return True
    return (
        type(held[0].base) is type(held[0])
        and getrefcount(held[0].base) == _SOLE
        and held[0].base.base is None
        and held[0].base.nbytes == held[0].nbytes
    )


def add_to(held: list[Any], output: int, gradient: Any) -> None:
    """Adds a gradient to `held[output]`, in place only if `held` alone has that array.

    A rule may have returned one array for several edges.
    """
    if (
        type(held[output]) is type(gradient) is np.ndarray
        and getrefcount(held[output]) == _SOLE
        and held[output].base is None
        and held[output].dtype is gradient.dtype
        and held[output].shape == gradient.shape
        and held[output].flags.writeable
    ):
        held[output] += gradient
        return
    total: Any = held[output] + gradient
    held[output] = np.asarray(total) if isinstance(total, np.generic) else total


def _count_edges(starts: Iterable[Node]) -> tuple[dict[Node, int], list[Node]]:
    """Returns the reached nodes with the number of edges that lead to each, and the last nodes.

    The last nodes are those without edges.
    """
    counts = dict.fromkeys(starts, 0)
    pending = list(counts)
    last = []
    while pending:
        node = pending.pop()
        ends = True
        for edge in node.edges:
            if edge is not None:
                ends = False
                child = edge[0]
                count = counts.get(child)
                if count is None:
                    counts[child] = 1
                    pending.append(child)
                else:
                    counts[child] = count + 1
        if ends:
            last.append(node)
    return counts, last


def _leading_to(targets: Set[Node], found: dict[Node, int]) -> dict[Node, int]:
    parents: dict[Node, list[Node]] = {}
    for node in found:
        for edge in node.edges:
            if edge is not None:
                known = parents.get(edge[0])
                if known is None:
                    parents[edge[0]] = [node]
                else:
                    known.append(node)
    needed = {node for node in targets if node in found}
    pending = list(needed)
    while pending:
        for parent in parents.get(pending.pop(), ()):
            if parent not in needed:
                needed.add(parent)
                pending.append(parent)
    return {
        node: sum(parent in needed for parent in parents.get(node, ()))
        for node in found
        if node in needed
    }


def _call_prehooks(node: Node, gradients: Gradients, *, retain: bool) -> Gradients:
    hooks = node.hooks
    if hooks is None:
        return gradients
    changed = list(gradients)
    for output, hook in hooks.outputs:
        if changed[output] is not None:
            replaced = hook(changed[output])
            if replaced is not None:
                (changed[output],) = _in_place_of((changed[output],), (replaced,), node)
    for output, keep in hooks.retained if retain else ():
        if changed[output] is not None:
            keep(changed[output])
    gradients = tuple(changed)
    for before in hooks.before:
        replaced = before(gradients)
        gradients = gradients if replaced is None else _in_place_of(gradients, replaced, node)
    return gradients


def _call_hooks(node: Node, results: Gradients, gradients: Gradients) -> Gradients:
    results = _checked(results, len(node.edges), node)
    hooks = node.hooks
    for hook in hooks.after if hooks is not None else ():
        replaced = hook(results, gradients)
        results = results if replaced is None else _in_place_of(results, replaced, node)
    return results


def _in_place_of(given: Gradients, replaced: Gradients, node: Node) -> Gradients:
    """Returns the gradients that a hook returned, after a check of their shapes."""
    for old, new in zip(given, _checked(replaced, len(given), node), strict=True):
        if old is not None and new is not None and np.shape(new) != old.shape:
            raise AutogradError(
                f"a hook of {node.name} returned a gradient of shape {np.shape(new)} in the place "
                f"of one of shape {old.shape}"
            )
    return tuple(replaced)


def _checked(gradients: Gradients, count: int, node: Node) -> Gradients:
    if len(gradients) != count:
        raise AutogradError(f"{node.name} returned {len(gradients)} gradients, {count} are needed")
    return tuple(gradients)
