"""The graph of one pass at one worker, between the functions of messages.

    roots, gradients of its sends ──▶ graph task ──▶ leaves, gradients and nones of its receives

Any thread may run the graph task, one at a time. The graph knows neither peers nor messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import final

from telegrad.autograd import Edge, Gradient, Gradients, GraphTask, Sink
from telegrad.dist_autograd.functions import Functions, RecvFunction
from telegrad.dist_autograd.ids import ContextId
from telegrad.dist_autograd.messages import PassMode
from telegrad.dist_autograd.pass_gradients import PassGradients
from telegrad.dist_autograd.pass_protocol import Cut, FunctionKey, Peer
from telegrad.errors import AutogradError, ContextMismatchError, WorkerLostError


@final
class PassGraph:
    """The functions of a cut with the graph task that leads from its sends to its receives.

    Args:
        roots: The edges where the pass starts, with their gradients; none but at the starter.
        gradients: The target for gradients of leaves.
        wanted: The edges whose gradients `captured` shall hold, if the context keeps none.
        on_receive: Function called once, in the thread that runs the graph, for each receive that
            is reached: with its gradients, or None if only none has reached it.

    Attributes:
        fed: True if the graph may have ready nodes; the thread that runs it sets it to False.
    """

    def __init__(
        self,
        context_id: ContextId,
        functions: Functions,
        roots: Sequence[tuple[Edge, Gradient]],
        mode: PassMode,
        *,
        gradients: PassGradients,
        wanted: Sequence[Edge],
        on_receive: Callable[[FunctionKey, Gradients | None], object],
    ) -> None:
        self._context_id = context_id
        self._functions = functions
        self._on_receive = on_receive
        self._dropped = False
        self.task = GraphTask(
            roots,
            accumulate=gradients,
            sources=list(functions.sends.values()),
            retain_graph=mode.retain,
            create_graph=mode.create,
            sink=self._on_sink,
            captures=None if mode.keep else wanted,
        )
        gradients.streams = self.task.streams
        self.fed = True

    def cut(self, lost: Mapping[Peer, WorkerLostError]) -> Cut:
        """Returns its functions as the protocol knows them, with peers that are lost."""
        sends: dict[Peer, list[int]] = {}
        for peer, number in self._functions.sends:
            sends.setdefault(peer, []).append(number)
        receives, reachable = self._functions.receives, self.task.reachable
        reached: list[FunctionKey] = []
        for key, node in receives.items():
            if node in reachable:
                reached.append(key)
        return Cut(sends, frozenset(receives), frozenset(reached), lost)

    def feed(self, key: FunctionKey, gradients: Gradients | None) -> None:
        """Queues the answer to a send; `run` processes it."""
        self.task.feed(self._functions.sends[key], gradients)
        # Set last: the thread that runs the graph clears it, and looks for fed nodes after that.
        self.fed = True

    def run(self) -> bool:
        """Processes ready nodes until it is done or the rest waits for answers; see `GraphTask`.

        Returns:
            True if it is done.

        Raises:
            ContextMismatchError: It shares nodes with another context, which has freed some.
            BaseException: A rule, a hook, or `on_receive` raised this error.
        """
        try:
            return self.task.run()
        except AutogradError as error:
            for node in self.task.reachable:
                if isinstance(node, RecvFunction) and node.context_id != self._context_id:
                    mismatch = _mismatch(node, self._context_id)
                    mismatch.add_note(f"first of all {error}")
                    raise mismatch from error
            raise

    def drop(self) -> None:
        """Stops it, and reports no receive any more."""
        self._dropped = True
        self.task.abort()

    def _on_sink(self, sink: Sink, gradients: Gradients | None) -> None:
        """Reports a receive that the graph has reached."""
        # A rule that ran as the pass was dropped comes here once more.
        if self._dropped:
            return
        assert isinstance(sink, RecvFunction), sink
        key = (sink.peer.incarnation, sink.message)
        if self._functions.receives.get(key) is sink:
            self._on_receive(key, gradients)
        elif gradients is not None:
            raise _mismatch(sink, self._context_id)


def _mismatch(sink: RecvFunction, context_id: ContextId) -> AutogradError | ContextMismatchError:
    if sink.context_id == context_id:
        return AutogradError(
            f"a gradient reached {sink.name}, which was not yet recorded when the pass began; "
            "call backward when what it depends on has arrived"
        )
    return ContextMismatchError(
        f"backward in autograd context {context_id} reached a value that was received from "
        f"{sink.peer.name!r} in context {sink.context_id}; receive it inside the context that "
        "backward runs in, or detach() it; a function that serves calls of several contexts at "
        "once computes for each call by itself, or under no_grad()"
    )
