"""Drives one pass at one worker: the pure protocol, the local graph task, the messages.

    pool threads ──events──▶ queue ──one thread at a time──▶ protocol ──actions──▶ messages
                                ▲                                │
                                │                              feeds
                              sinks                              ▼
                                └───────────── graph task, one thread at a time

A thread that brings an event handles the queue, then works on the graph until it is dry. If another
thread does that already, the first one only queues its event. So no thread waits. Messages are
collected and leave at the end, one to each peer; a gradient leaves at once while there is more to
compute. Queue and graph are separate so that a loss or an abort is handled while a rule runs,
however long that takes.

A recorded pass leaves functions of its own, as a message of gradients is a message like any other.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeAlias, final

import numpy as np

from telegrad.arrays import Place, current_place
from telegrad.autograd import (
    Completion,
    Edge,
    Gradient,
    Gradients,
    GraphTask,
    Sink,
    Tensor,
    attach,
    is_row_sparse,
)
from telegrad.dist_autograd import pass_protocol as protocol
from telegrad.dist_autograd.desk import Desk
from telegrad.dist_autograd.functions import Functions, RecvFunction, SendFunction
from telegrad.dist_autograd.ids import ContextId
from telegrad.dist_autograd.messages import (
    ABORT,
    PASS,
    AbortMessage,
    PassId,
    PassMessage,
    PassMode,
    note_origin,
)
from telegrad.dist_autograd.pass_gradients import PassGradients
from telegrad.dist_autograd.pass_protocol import (
    Action,
    Answer,
    Begin,
    Cut,
    FunctionKey,
    PassProtocol,
    Peer,
    Phase,
    Reply,
)
from telegrad.errors import AutogradError, ContextMismatchError, UnknownWorkerError, WorkerLostError
from telegrad.rpc import Future
from telegrad.rpc.seams import AgentCore, new_future
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope

__all__ = [
    "PassContext",
    "PassRunner",
    "record_received",
    "record_sent",
]


class PassContext(Protocol):
    """The part of its context that a pass uses; `Context`, in a file above, has it."""

    id: ContextId

    def touch(self, peer: WorkerInfo) -> bool:
        """Records that a peer will learn of the context."""

    def functions(self) -> Functions:
        """Returns the functions that are recorded now."""

    def record_send(self, function: SendFunction) -> None:
        """Records the function of a message to a peer."""

    def record_receive(self, function: RecvFunction) -> None:
        """Records the function of a message from a peer."""

    def ended_passes(self) -> Sequence[PassGradients]:
        """Returns the gradients of the passes that have ended."""


# -- functions of recorded passes ----------------------------------------------------------------
#
# Under `create_graph` a gradient is a Tensor with a place in the graph of the worker that computed
# it. The message that takes it to another worker is recorded like any other: its sender has a send
# function above the gradients, its receiver a recv function below them, for cuts of later passes.
# The cut of the pass that sends the message was fixed before. It has neither function, or no path
# leads on from them.
#
#     forward     x ── send ───────────▶ recv ── y             gradients of y and x: gy and gx
#     pass 1     gx ◀── recv' ─ ─ ─ ─ ── send' ◀── gy          recorded
#     pass 2        ─── (gx leads to recv') ──▶ send' ──▶ ...  the gradients of gx


def record_sent(
    context: PassContext, peer: WorkerInfo, message: PassMessage, new_message: Callable[[], int]
) -> None:
    """Records a send function for a message if one of its gradients needs a gradient.

    Args:
        context: The context that records it.
        peer: The receiver.
        message: The message, whose gradients are Tensors.
        new_message: Function that returns a new autograd message id.
    """
    flat = [gradient for _, slots in message.gradients for gradient in slots]
    needing = {
        place: each
        for place, each in enumerate(flat)
        if isinstance(each, Tensor) and each.requires_grad
    }
    if not needing:
        return
    number = new_message()
    context.record_send(
        SendFunction(needing.values(), context_id=context.id, peer=peer, message=number)
    )
    message.function, message.slots = number, tuple(needing)


def record_received(
    context: PassContext, peer: WorkerInfo, message: PassMessage
) -> list[tuple[int, Gradients]]:
    """Records the recv function of a message and returns its gradients as outputs of it.

    Args:
        context: The context that records it.
        peer: The sender.
        message: The message, which names a function.
    """
    function = RecvFunction(
        len(message.slots), context_id=context.id, peer=peer, message=message.function
    )
    context.record_receive(function)
    outputs = {slot: output for output, slot in enumerate(message.slots)}
    place = 0
    received: list[tuple[int, Gradients]] = []
    for number, slots in message.gradients:
        attached = []
        for gradient in slots:
            if place in outputs and isinstance(gradient, Tensor):
                gradient = attach(gradient.data, function, outputs[place])
            attached.append(gradient)
            place += 1
        received.append((number, tuple(attached)))
    return received


def _home_of(message: PassMessage) -> Place | None:
    """Returns the stream in which this thread has read gradients of a message, if on a GPU."""
    for _, slots in message.gradients:
        for gradient in slots:
            if gradient is not None and type(gradient) is not np.ndarray:
                array: Any = gradient.data if isinstance(gradient, Tensor) else gradient
                array = array.values if is_row_sparse(array) else array
                if (place := current_place(array)) is not None:
                    return place
    return None


# -- the runner ----------------------------------------------------------------------------------

Event: TypeAlias = Callable[[], list[Action[Gradients]]]

# The begins of a pass wait for the work on a graph of at most so many nodes, and leave with its
# answers: such a graph takes less time than one more message.
SMALL_GRAPH = 32

_logger = logging.getLogger(__name__)


@final
class PassRunner:
    """One worker's part in one pass. All public methods may be called from any thread.

    Args:
        agent: This worker's agent.
        context: The context that the pass runs in.
        pass_id: The id of the pass.
        new_message: Function that returns a new autograd message id.
        desk: The dispatcher of messages, here of replies, to threads.

    Attributes:
        ended: At the starter alone, the future completed when the pass has ended everywhere.
        gradients: The gradients of this worker's leaves; valid once this is `done`.
    """

    def __init__(
        self,
        agent: AgentCore,
        context: PassContext,
        pass_id: PassId,
        new_message: Callable[[], int],
        desk: Desk,
    ) -> None:
        self.id = pass_id
        starts = pass_id.incarnation == agent.info.incarnation
        starter = agent.info if starts else pass_id.starter
        self._peers = {starter.incarnation: starter}  # by incarnation, as the protocol knows them
        self.gradients = PassGradients(context.ended_passes)
        if starts:
            label = f"backward of context {context.id}"
            self.ended: Future[None] = new_future(agent.pool.submit, label)
        self._agent = agent
        self._context = context
        self._new_message = new_message
        self._desk = desk
        self._mode = PassMode()
        # At the starter of a pass that keeps no gradients: the wanted edges, and their gradients.
        self._wanted: tuple[Edge, ...] = ()
        self._captured: MutableMapping[Edge, Gradient] = {}
        self._protocol: PassProtocol[Gradients] = PassProtocol(
            agent.info.incarnation, starter.incarnation, lambda peer: self._peers[peer].name
        )
        self._events: deque[Event] = deque()
        self._working = threading.Lock()
        self._functions: Functions | None = None
        self._task: GraphTask | None = None
        self._fed = False  # the graph may have ready nodes
        self._finishing = False  # the graph is done, the hooks' work at the end is not
        self._nones: deque[FunctionKey] = deque()  # receives that only none reached
        self._outgoing: dict[Peer, PassMessage] = {}  # sent at the end of the work

    @property
    def done(self) -> bool:
        """True if this worker's part of the pass has ended with success."""
        return self._protocol.phase is Phase.DONE

    @property
    def running(self) -> bool:
        """True if this worker's part of the pass has not ended yet."""
        phase = self._protocol.phase
        return phase is Phase.ACTIVE or phase is Phase.IDLE

    @property
    def waiting(self) -> bool:
        """True if this runs, or was aborted and a peer has not replied to this worker's begin."""
        return self.running or self._protocol.awaited is not None

    # Events.

    def start(
        self, roots: Sequence[tuple[Edge, Gradient]], mode: PassMode, wanted: Sequence[Edge] = ()
    ) -> None:
        """Starts the pass at this worker; `ended` completes when it has ended everywhere.

        Args:
            roots: The edges where it starts, with their gradients.
            mode: The options of the pass.
            wanted: The edges whose gradients `take_captured` returns, if the context keeps none.
        """
        self._mode, self._wanted = mode, tuple(wanted)
        self._handle(partial(self._start, roots))

    def hear(self, peer: WorkerInfo, message: PassMessage) -> None:
        """Queues and handles a peer's message; the caller must call `work` afterwards."""
        self._queue(partial(self._hear, peer, message, _home_of(message)))

    def abort(
        self,
        cause: BaseException,
        source: tuple[WorkerInfo, Envelope] | None = None,
        *,
        at_once: bool = False,
    ) -> None:
        """Aborts the pass because of an error at this worker, or at the request of a peer.

        Args:
            cause: The error that ends the pass.
            source: The peer and the message in which it requests the abort.
            at_once: True if this worker waits for no other: it leaves, or was evicted.
        """
        task = self._task
        starts = self.id.incarnation == self._agent.info.incarnation
        if task is not None and (source is None or not starts):
            task.abort()  # no further rule starts, in whatever thread the task runs
        self._handle(partial(self._abort, cause, source, at_once=at_once))

    def work(self) -> None:
        """Works on the graph until it is dry, and sends the collected messages."""
        if self._fed:
            self._run_graph()
        while self._outgoing and self._queue(self._say_all):
            if self._fed:
                self._run_graph()  # another thread's event may have been handled there

    def take_captured(self) -> MutableMapping[Edge, Gradient]:
        """Returns the gradients of the wanted edges; callable once, when the pass has ended."""
        captured, self._captured, self._wanted = self._captured, {}, ()
        return captured

    def late_workers(self) -> list[str]:
        """Returns the names of the workers that this one waits for."""
        late = {peer for peer, _ in self._protocol.unanswered} | self._protocol.unbegun
        return sorted(self._peers[peer].name for peer in late)

    def missing(self) -> str:
        """Returns in words what this worker waits for."""
        late = self.late_workers()
        if not late:
            doing = "waited for the end of the pass" if self._finishing else "computed"
            return f"while worker {self._agent.info.name!r} {doing}"
        return f"waiting for {', '.join(map(repr, late))}"

    def lose(self, peer: WorkerInfo, error: WorkerLostError) -> None:
        """Handles the loss of a worker."""
        self._handle(lambda: self._protocol.lost(self._known(peer), error))

    # One thread at a time.

    def _handle(self, event: Event) -> None:
        self._queue(event)
        self.work()

    def _queue(self, event: Event) -> bool:
        """Queues an event and handles the queue.

        Returns:
            False if another thread handles the queue; that thread then handles this event, too.
        """
        events, working = self._events, self._working
        events.append(event)
        while working.acquire(blocking=False):
            try:
                while events:
                    react = events.popleft()
                    try:
                        if actions := react():
                            self._perform(actions)
                    except BaseException as error:  # it must end the pass, not leave it hanging
                        self._perform(self._failed(error))
            finally:
                working.release()
            # A thread that found the lock taken has queued its event before: look again.
            if not events:
                return True
        return False

    def _known(self, worker: WorkerInfo) -> Peer:
        """Returns a worker as the protocol knows it."""
        self._peers[worker.incarnation] = worker
        return worker.incarnation

    def _abort(
        self, cause: BaseException, source: tuple[WorkerInfo, Envelope] | None, *, at_once: bool
    ) -> list[Action[Gradients]]:
        told = None if source is None else (self._known(source[0]), source[1])
        return self._protocol.abort(cause, told, at_once=at_once)

    def _failed(self, error: BaseException) -> list[Action[Gradients]]:
        note_origin(error, self._agent.info.name, self._context.id)
        return self._protocol.abort(error)

    def _hear(
        self, sender: WorkerInfo, message: PassMessage, home: Place | None
    ) -> list[Action[Gradients]]:
        actions: list[Action[Gradients]] = []
        peer = self._known(sender)
        gradients = message.gradients
        if message.mode is not None:
            if self._protocol.phase is Phase.IDLE:
                self._mode = message.mode
                try:
                    actions = self._enter((), peer, frozenset(dict(gradients)))
                except BaseException as error:  # the begin must be replied to
                    actions = self._failed(error)
            actions += self._protocol.begin(peer, message.claims, None)
        if home is not None and self._task is not None and self._task.streams is not None:
            self._task.streams.lend(home, gradients)
        if gradients or message.nones:
            if message.function:
                gradients = record_received(self._context, sender, message)
            actions += self._protocol.answer(peer, gradients, message.nones)
        if message.begun:  # last: it says that all answers are there
            actions += self._protocol.begun(peer, message.cause)
        return actions

    # The graph: outside of the queue, so that events go on being handled while a rule runs.

    def _run_graph(self) -> None:
        # Each thread that handles an event comes here afterwards. In `_queue` below, it may
        # handle an event of another thread, which has found nothing to do and left: so look again.
        while self._fed and (task := self._task) is not None:
            self._fed = False
            if self._outgoing and task.remaining > SMALL_GRAPH:
                self._queue(self._say_all)
            try:
                done = task.run()
            except BaseException as error:  # SystemExit too: a rule, a hook or a sink raised
                self._queue(partial(self._failed, self._or_mismatch(task, error)))
                return
            # A task that is done has called all sinks: their gradients and nones are here.
            if self._nones:
                self._queue(self._ran)
            elif done:
                self._queue(self._graph_done)

    def _or_mismatch(self, task: GraphTask, error: BaseException) -> BaseException:
        """Returns an error, or its reason if two contexts share a graph, which one freed."""
        if isinstance(error, AutogradError):
            for node in task.reachable:
                if isinstance(node, RecvFunction) and node.context_id != self._context.id:
                    mismatch = _mismatch(node, self._context.id)
                    mismatch.__cause__ = error
                    mismatch.add_note(f"first of all {error}")
                    return mismatch
        return error

    def _ran(self) -> list[Action[Gradients]]:
        """Resolves all receives that only none reached, and checks if the graph is done."""
        task = self._task
        if task is None:
            return []
        done = task.done  # read first: a task that is done has called all sinks before
        nones: list[tuple[FunctionKey, Gradients | None]] = []
        while self._nones:  # this thread alone takes from it now
            nones.append((self._nones.popleft(), None))
        if done:  # queued, so that it comes after the gradients that the sinks have queued
            self._events.append(self._graph_done)
        return self._protocol.resolve(nones) if nones else []

    def _graph_done(self) -> list[Action[Gradients]]:
        """Handles the end of the graph; may run several times, as several threads may see it."""
        if self._task is None:
            return []
        self._captured = self._task.captured
        self._task = self._functions = None
        if not self.gradients.has_ends:
            return self._protocol.finished()
        self._finishing = True
        self._agent.pool.submit(self._finish)
        return []

    def _finish(self) -> None:
        """Runs the hooks' work at the end of the pass, in the pool, so that events are handled."""
        try:
            with self.gradients.in_order():
                completions = self.gradients.finish()
        except BaseException as error:  # a hook raised
            self._handle(partial(self._failed, error))
        else:
            self._finish_after(completions)

    def _finish_after(self, completions: Sequence[Completion]) -> None:
        if not completions:
            self._handle(self._protocol.finished)
            return

        def done(first: Completion) -> None:
            error = first.exception()
            if error is None:
                self._finish_after(completions[1:])
            else:
                self._handle(partial(self._failed, error))

        completions[0].then(done)

    def _on_sink(self, sink: Sink, gradients: Gradients | None) -> None:
        """Handles a sink that the graph has reached: a recv function; queues its gradients."""
        functions = self._functions
        if functions is None:
            return  # aborted meanwhile
        assert isinstance(sink, RecvFunction), sink
        key = (sink.peer.incarnation, sink.message)
        if functions.receives.get(key) is not sink:
            if gradients is not None:
                raise _mismatch(sink, self._context.id)
        elif gradients is None:
            self._nones.append(key)
        else:
            self._queue(partial(self._protocol.resolve, [(key, gradients)]))

    def _lost(self) -> dict[Peer, WorkerLostError]:
        lost, agent = {}, self._agent
        for peer, worker in self._peers.items():
            error = agent.members.lost(worker) if peer != agent.info.incarnation else None
            if error is not None:
                lost[peer] = error
        return lost

    def _start(self, roots: Sequence[tuple[Edge, Gradient]]) -> list[Action[Gradients]]:
        aborted = self._protocol.phase is not Phase.IDLE
        return [] if aborted else self._enter(roots)

    def _enter(
        self,
        roots: Sequence[tuple[Edge, Gradient]],
        begun_by: Peer | None = None,
        answered: frozenset[int] = frozenset(),
    ) -> list[Action[Gradients]]:
        functions = self._context.functions()
        task = GraphTask(
            roots,
            accumulate=self.gradients,
            sources=list(functions.sends.values()),
            retain_graph=self._mode.retain,
            create_graph=self._mode.create,
            sink=self._on_sink,
            captures=None if self._mode.keep else self._wanted,
        )
        self._functions, self._task, self._fed = functions, task, True
        self.gradients.streams = task.streams
        sends: dict[Peer, list[int]] = {}
        for (peer, number), send in functions.sends.items():
            self._peers[peer] = send.peer
            sends.setdefault(peer, []).append(number)
        receives = frozenset(functions.receives)
        unreached: list[FunctionKey] = []
        for key, node in functions.receives.items():
            self._peers[key[0]] = node.peer
            if not task.reaches(node):
                unreached.append(key)
        reached = receives.difference(unreached)
        cut = Cut(sends, receives, reached, self._lost())
        return self._protocol.enter(cut, begun_by, answered)

    # Actions.

    def _perform(self, actions: Sequence[Action[Gradients]]) -> None:
        for action in actions:
            match action:
                case protocol.Feed(key, gradient):
                    functions, task = self._functions, self._task
                    if functions is not None and task is not None:
                        task.feed(functions.sends[key], gradient)
                        self._fed = True
                    # Else the pass was aborted, perhaps by the action right before this one.
                case protocol.Drop(cause):
                    self._drop(cause)
                case protocol.End(cause):
                    self._end(cause)
                case protocol.Abort(peer, cause):
                    with suppress(
                        WorkerLostError, UnknownWorkerError
                    ):  # the agent tells of it, too
                        self._abort_at(self._peers[peer], cause)
                case protocol.Confirm(peer, request):
                    assert isinstance(request, Envelope)
                    self._agent.messages.reply(self._peers[peer], request)
                case _:
                    self._say(action)

    def _drop(self, cause: BaseException) -> None:
        if self._task is not None:
            self._task.abort()
        self._task = self._functions = None
        self._captured = {}
        self.gradients.abandon(cause)
        self.gradients.clear()

    def _end(self, cause: BaseException | None) -> None:
        if cause is None:
            self.ended.try_set_result(None)
        else:
            self._agent.inbox.weigh(cause, self.ended.try_set_exception)

    def _say(self, action: Begin | Answer[Gradients] | Reply) -> None:
        """Adds an action to the next message to a peer."""
        peer = action.peer
        message = self._outgoing.get(peer)
        if message is None:
            message = self._outgoing[peer] = PassMessage(self._context.id, self.id)
        if isinstance(action, Answer):
            message.gradients += action.gradients
            message.nones += action.nones
            task = self._task
            if not (task is None or task.dry):
                self._send(peer)
        elif isinstance(action, Begin):
            self._context.touch(self._peers[peer])
            message.mode, message.claims = self._mode, action.claims
        else:
            message.begun, message.cause = True, action.cause

    def _say_all(self) -> list[Action[Gradients]]:
        while self._outgoing:
            self._send(next(iter(self._outgoing)))
        return []

    def _send(self, peer: Peer) -> None:
        message, to = self._outgoing.pop(peer), self._peers[peer]
        try:
            if self._mode.create and message.gradients:
                record_sent(self._context, to, message, self._new_message)
            with self.gradients.in_order():  # another thread may have computed them
                self._agent.messages.post(to, PASS, message.to_wire())
        except (WorkerLostError, UnknownWorkerError) as error:
            self._events.append(partial(self._protocol.lost, peer, error))
        except BaseException as error:
            if not message.gradients:
                raise
            # The gradients cannot be sent. Send the rest of the message, with this failure.
            message.gradients, message.function = [], 0
            self._perform(self._failed(error))
            message.cause = self._protocol.cause
            self._outgoing[peer] = message

    def _abort_at(self, peer: WorkerInfo, cause: BaseException) -> None:
        """Requests an abort at a peer; the reply becomes an event, a failure the peer's loss."""

        def read() -> PassRunner:
            error = future.exception()
            if isinstance(error, WorkerLostError):
                self._queue(partial(self._protocol.lost, peer.incarnation, error))
            else:
                self._queue(partial(self._protocol.confirmed, peer.incarnation))
            return self

        abort = AbortMessage(self._context.id, self.id, cause)
        future = self._agent.messages.request(peer, ABORT, abort.to_wire())
        future._call_when_done(partial(self._desk.put, read))


def _mismatch(sink: RecvFunction, context_id: int) -> AutogradError | ContextMismatchError:
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
