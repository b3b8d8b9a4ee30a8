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

Under `create_graph` a gradient is a Tensor with a place in the graph of the worker that computed
it. The message that takes it to another worker is recorded like any other, for the cuts of later
passes. The cut of the pass that sends it was fixed before: it has neither function, or no path
leads on.

    forward     x ── send ───────────▶ recv ── y             gradients of y and x: gy and gx
    pass 1     gx ◀── recv' ─ ─ ─ ─ ── send' ◀── gy          recorded
    pass 2        ─── (gx leads to recv') ──▶ send' ──▶ ...  the gradients of gx
"""

from __future__ import annotations

import logging
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, final

import numpy as np

from telegrad.arrays import Place, current_place
from telegrad.autograd import (
    Edge,
    Gradient,
    Gradients,
    Tensor,
    is_row_sparse,
)
from telegrad.dist_autograd import pass_protocol as protocol
from telegrad.dist_autograd.context import Context
from telegrad.dist_autograd.desk import Desk, Event, EventQueue
from telegrad.dist_autograd.messages import (
    ABORT,
    PASS,
    PassId,
    PassMessage,
    PassMode,
)
from telegrad.dist_autograd.pass_gradients import PassGradients
from telegrad.dist_autograd.pass_graph import PassGraph
from telegrad.dist_autograd.pass_protocol import (
    Action,
    Answer,
    Begin,
    Cut,
    PassProtocol,
    Peer,
    Phase,
    Reply,
)
from telegrad.errors import UnknownWorkerError, WorkerLostError
from telegrad.rpc import Future
from telegrad.rpc.seams import AgentCore, new_future
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope


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

# The begins of a pass wait for the work on a graph of at most so many nodes, and leave with its
# answers: such a graph takes less time than one more message.
SMALL_GRAPH = 32

_logger = logging.getLogger(__name__)


@final
class PassRunner:
    """One worker's part in one pass. All public methods may be called from any thread.

    Attributes:
        ended: At the starter alone, the future completed when the pass has ended everywhere.
        gradients: The gradients of this worker's leaves; valid once they are complete.
    """

    def __init__(
        self,
        agent: AgentCore,
        context: Context,
        pass_id: PassId,
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
        self._desk = desk
        self._mode = PassMode()
        self._captured: MutableMapping[Edge, Gradient] = {}  # see `take_captured`
        self._protocol: PassProtocol[Gradients] = PassProtocol(
            agent.info.incarnation, starter.incarnation, lambda peer: self._peers[peer].name
        )
        self._events: EventQueue[Action[Gradients]] = EventQueue(self._perform, self._failed)
        self._graph: PassGraph | None = None  # from the cut on, until it is done or dropped
        self._finishing = False  # the graph is done, the hooks' work at the end is not
        self._outgoing: dict[Peer, PassMessage] = {}  # sent at the end of the work

    @property
    def running(self) -> bool:
        """True if this worker's part of the pass has not ended yet."""
        phase = self._protocol.phase
        return phase is Phase.ACTIVE or phase is Phase.IDLE

    @property
    def waiting(self) -> bool:
        """True if this runs, or was aborted and a peer has not replied to this worker's begin."""
        return self.running or self._protocol.awaits_reply

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
        self._mode = mode

        def enter() -> list[Action[Gradients]]:
            # The pass may have been aborted before: its context was released, or its deadline
            # passed.
            aborted = self._protocol.phase is not Phase.IDLE
            return [] if aborted else self._protocol.enter(self._cut(roots, wanted))

        self._handle(enter)

    def hear(self, peer: WorkerInfo, message: PassMessage) -> None:
        """Queues and handles a peer's message; the caller must call `work` afterwards."""
        home: Place | None = None
        try:
            home = _home_of(message)
        except Exception as error:  # of a GPU; the rest of the message must still be handled
            self._events.handle(partial(self._failed, error))
        self._events.handle(partial(self._hear, peer, message, home))

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
        graph = self._graph
        starts = self.id.incarnation == self._agent.info.incarnation
        if graph is not None and (source is None or not starts):
            graph.task.abort()  # no further rule starts, in whatever thread it runs
        self._handle(
            lambda: self._protocol.abort(
                cause, source and (self._known(source[0]), source[1]), at_once=at_once
            )
        )

    def work(self) -> None:
        """Works on the graph until it is dry, and sends the collected messages."""
        if self._graph is not None:
            self._run_graph()
        while self._outgoing and self._events.handle(self._say_all):
            if self._graph is not None:
                self._run_graph()  # another thread's event may have been handled there

    def take_captured(self) -> MutableMapping[Edge, Gradient]:
        """Returns the gradients of the wanted edges; callable once, when the pass has ended."""
        captured, self._captured = self._captured, {}
        return captured

    def missing(self) -> tuple[list[str], str]:
        """Returns the names of the workers that this one waits for, and in words what it awaits."""
        late = sorted(self._peers[peer].name for peer in self._protocol.late)
        if late:
            return late, f"waiting for {', '.join(map(repr, late))}"
        doing = "waited for the end of the pass" if self._finishing else "computed"
        return late, f"while worker {self._agent.info.name!r} {doing}"

    def lose(self, peer: WorkerInfo, error: WorkerLostError) -> None:
        """Handles the loss of a worker."""
        self._handle(lambda: self._protocol.lost(self._known(peer), error))

    # One thread at a time.

    def _handle(self, event: Event[Action[Gradients]]) -> None:
        self._events.handle(event)
        self.work()

    def _known(self, worker: WorkerInfo) -> Peer:
        """Returns a worker as the protocol knows it."""
        self._peers[worker.incarnation] = worker
        return worker.incarnation

    def _failed(self, error: BaseException) -> list[Action[Gradients]]:
        where = f"worker {self._agent.info.name!r}, in backward of context {self._context.id}"
        error.add_note(f"raised on {where}")
        return self._protocol.abort(error)

    def _hear(
        self, sender: WorkerInfo, message: PassMessage, home: Place | None
    ) -> list[Action[Gradients]]:
        actions: list[Action[Gradients]] = []
        peer = self._known(sender)
        gradients = message.gradients
        if message.mode is not None:
            # The begin goes first: the answers behind it belong to the cut that it fixes.
            if self._protocol.phase is Phase.IDLE:
                self._mode = message.mode
                try:
                    cut = self._cut((), ())
                    actions = self._protocol.enter(cut, peer, frozenset(dict(gradients)))
                except BaseException as error:  # the begin must be replied to
                    actions = self._failed(error)
            actions += self._protocol.begin(peer, message.claims)
        try:
            streams = None if self._graph is None else self._graph.task.streams
            # Rules of this pass must come behind the stream in which the gradients were read.
            if home is not None and streams is not None:
                streams.lend(home, gradients)
            if gradients or message.nones:
                if message.sent:
                    self._context.record_receive(sender, message.sent, message.flat())
                actions += self._protocol.answer(peer, gradients, message.nones)
        except BaseException as error:  # of a GPU; the replies above and below still go out
            actions += self._failed(error)
        if message.begun:  # last: it says that all answers are there
            actions += self._protocol.begun(peer, message.cause)
        return actions

    # The graph: outside of the queue, so that events go on being handled while a rule runs.

    def _run_graph(self) -> None:
        # Each thread that handles an event comes here afterwards. In `handle` below, it may
        # handle an event of another thread, which has found nothing to do and left: so look again.
        while (graph := self._graph) is not None and graph.fed:
            # Cleared before the run: a thread that feeds the graph meanwhile sets it again.
            graph.fed = False
            if self._outgoing and graph.task.remaining > SMALL_GRAPH:
                self._events.handle(self._say_all)
            try:
                done = graph.run()
            except BaseException as error:  # SystemExit too: a rule, a hook or a receive raised
                self._events.handle(partial(self._failed, error))
                return
            if done:  # it has reported all receives: these events are in the queue before this one
                self._events.handle(self._graph_done)

    def _graph_done(self) -> list[Action[Gradients]]:
        """Handles the end of the graph; may run several times, as several threads may see it."""
        if self._graph is None:
            return []
        self._captured = self._graph.task.captured
        self._graph = None
        if not self.gradients.has_ends:
            return self._protocol.finished()
        self._finishing = True
        # In the pool, so that events are handled meanwhile.
        self._agent.pool.submit(self.gradients.finish_then, self._finished)
        return []

    def _finished(self, error: BaseException | None) -> None:
        event = self._protocol.finished if error is None else partial(self._failed, error)
        self._handle(event)

    def _cut(self, roots: Sequence[tuple[Edge, Gradient]], wanted: Sequence[Edge]) -> Cut:
        """Makes the graph of the functions that are recorded now, and returns them as a cut."""
        functions = self._context.functions()
        self._graph = graph = PassGraph(
            self._context.id,
            functions,
            roots,
            self._mode,
            gradients=self.gradients,
            wanted=wanted,
            on_receive=lambda *answer: self._events.handle(
                partial(self._protocol.resolve, *answer)
            ),
        )
        for each in (functions.sends, functions.receives):
            for key, function in each.items():
                self._peers[key[0]] = function.peer
        lost: dict[Peer, WorkerLostError] = {}
        for peer, worker in self._peers.items():
            if peer != self._agent.info.incarnation:
                error = self._agent.members.lost(worker)
                if error is not None:
                    lost[peer] = error
        return graph.cut(lost)

    # Actions.

    def _perform(self, actions: Sequence[Action[Gradients]]) -> None:
        self.gradients.complete = self._protocol.phase is Phase.DONE  # before anybody hears of it
        for action in actions:
            match action:
                case protocol.Feed(key, gradient):
                    if self._graph is not None:
                        self._graph.feed(key, gradient)
                    # Else the pass was aborted, perhaps by the action right before this one.
                case protocol.Drop(cause):
                    if self._graph is not None:
                        self._graph.drop()
                    self._graph = None
                    self._captured = {}
                    self.gradients.abandon(cause)
                    self.gradients.clear()
                case protocol.End(cause):
                    if cause is None:
                        self.ended.try_set_result(None)
                    else:
                        self._agent.inbox.weigh(cause, self.ended.try_set_exception)
                case protocol.Abort(peer, cause):
                    # The agent tells of a loss, too.
                    with suppress(WorkerLostError, UnknownWorkerError):
                        self._abort_at(self._peers[peer], cause)
                case protocol.Confirm(peer, request):
                    assert isinstance(request, Envelope)
                    self._agent.messages.reply(self._peers[peer], request)
                case _:
                    self._say(action)

    def _say(self, action: Begin | Answer[Gradients] | Reply) -> None:
        """Adds an action to the next message to a peer."""
        peer = action.peer
        message = self._outgoing.get(peer)
        if message is None:
            message = self._outgoing[peer] = PassMessage(self._context.id, self.id)
        if isinstance(action, Answer):
            message.gradients += action.gradients
            message.nones += action.nones
            if action.gradients and self._graph is not None and not self._graph.task.dry:
                self._send(peer)
        elif isinstance(action, Begin):
            # Before the begin leaves: a release that comes meanwhile has to reach the peer, too.
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
                # Recorded before it leaves: a later pass of the peer may claim it at once.
                message.sent = self._context.record_send(to, message.flat())
            with self.gradients.in_order():  # another thread may have computed them
                self._agent.messages.post(to, PASS, message.to_wire(self._agent.info.name))
        except (WorkerLostError, UnknownWorkerError) as error:
            # Queued: the event whose actions these are has to end first.
            self._events.handle(partial(self._protocol.lost, peer, error))
        except BaseException as error:
            if not message.gradients:
                raise
            # The gradients cannot be sent. Send the rest of the message, with this failure.
            message.gradients, message.sent = [], ()
            self._perform(self._failed(error))
            message.cause = self._protocol.cause
            self._outgoing[peer] = message

    def _abort_at(self, peer: WorkerInfo, cause: BaseException) -> None:
        """Requests an abort at a peer; the reply becomes an event, a failure the peer's loss."""

        def read() -> Callable[[], None]:
            error = future.exception()
            if isinstance(error, WorkerLostError):
                self._events.handle(partial(self._protocol.lost, peer.incarnation, error))
            else:
                self._events.handle(partial(self._protocol.confirmed, peer.incarnation))
            return self.work

        abort = PassMessage(self._context.id, self.id, begun=True, cause=cause)
        body = abort.to_wire(self._agent.info.name)
        future = self._agent.messages.request(peer, ABORT, body)
        future._call_when_done(partial(self._desk.put, read))
