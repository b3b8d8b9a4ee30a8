"""All autograd contexts of one worker, attached to its agent, and the handlers of their messages.

with context(): ──create──▶ Context ◀──enter── first message that carries its id
                               │
     leaving the block, or a release from a peer, or the creator's loss
                               ▼
                 released: the release goes to every peer it touched; never revived

A release counts from the creator, and from the introducer: the peer whose message named the context
here first. The introducer hears of every release, since it has an introducer in turn, and so on up
to the creator. From anybody else a release changes nothing (`docs/security.md`).

A lost worker passes no release on. So the creator tells every living worker itself: at the loss, of
the contexts released before, and later of each context that was open at the loss.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeAlias, final

from telegrad.critical import critical
from telegrad.dist_autograd.context import Context
from telegrad.dist_autograd.desk import Desk, Work
from telegrad.dist_autograd.ids import (
    ContextId,
    ReleasedContexts,
    check_context_id,
    creator_of,
    make_context_id,
    number_of,
)
from telegrad.dist_autograd.messages import (
    ABORT,
    PASS,
    RELEASE,
    PassId,
    PassMessage,
    ReleaseMessage,
    read_head_alone,
)
from telegrad.dist_autograd.pass_runner import PassRunner
from telegrad.errors import (
    ContextError,
    DecodeError,
    PoolExhaustedError,
    RemoteError,
    TelegradError,
    UnknownWorkerError,
    WorkerLostError,
)
from telegrad.rpc.seams import AgentCore, Tick, refuse_in_section
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope

# Seconds until the pool handles releases of peers, unless a thread that uses a context did before.
LOOK_SECONDS = 0.1


class _Dropped(NamedTuple):
    """A context that was removed from the container.

    Attributes:
        touched: The peers to tell, by incarnation.
        kept: Objects that the context no longer needs. They may be the user's and have finalizers,
            so the last reference is dropped where no lock is held.
    """

    id: ContextId
    touched: dict[int, WorkerInfo]
    passes: list[PassRunner]
    kept: object


@final
class Container:
    """The contexts that this worker created or knows from a message.

    Any thread may call the methods.

    Attributes:
        desk: The dispatcher of messages of passes to threads.
        new_message: Returns a new autograd message id, unique among all that this worker sends.
    """

    def __init__(self, agent: AgentCore) -> None:
        self.agent = agent
        self.desk = Desk(agent.pool.submit)
        self.new_message: Callable[[], int] = itertools.count(1).__next__
        self._lock = threading.Lock()  # guards all below
        self._contexts: dict[ContextId, Context] = {}
        self._released = ReleasedContexts()
        # Contexts and passes that each peer, by incarnation, has opened here, and at most may.
        self._opened = Counter[int]()
        self._most_opened = agent.options.limits.served_calls_per_peer
        self._next_pass = itertools.count(1)
        self._created = 0
        # Passes of a released context stay until they have got all awaited messages.
        self._passes: dict[PassId, PassRunner] = {}
        self._ending: list[PassRunner] = []
        self._for_all = 0  # a lost worker may have passed own contexts up to this number on
        # The releases of peers. A look at each of them would wake a thread in each step.
        self._told: deque[Work] = deque()
        self._looks = Tick(
            agent.deadlines.after, LOOK_SECONDS, self._look, lambda: bool(self._told)
        )
        agent.life.on_leaving(self.work_off)
        agent.life.on_leaving(agent.messages.flush)
        agent.calling.on_given_up(self._give_up)

    def __len__(self) -> int:
        """Returns the number of contexts that are open here."""
        self.work_off()
        return len(self._contexts)

    def create(self) -> ContextId:
        """Opens a new context of this worker."""
        refuse_in_section("a context")
        with critical.section, self._lock:
            self._created += 1
            context_id = make_context_id(self.agent.info.incarnation, self._created)
            self._contexts[context_id] = Context(context_id, self.new_message)
        return context_id

    def enter(self, context_id: ContextId, peer: WorkerInfo) -> Context | None:
        """Returns the context that a peer's message names, new if unknown; None if it is released.

        Raises:
            PoolExhaustedError: The peer has as many contexts and passes open here as it may have.
        """
        if self._told:
            self.work_off()
        context = self._contexts.get(context_id)  # the usual case; a release may come at any time
        if context is not None:
            return context
        with critical.section, self._lock:
            context = self._contexts.get(context_id)
            if context is not None:
                return context
            own = creator_of(context_id) == self.agent.info.incarnation
            # A message that comes behind the release must not revive its context: nobody would
            # release it again.
            if own or self._released.is_over_for(peer, context_id):
                return None
            context = Context(context_id, self.new_message, peer)
            self._count(context, peer)
            self._contexts[context_id] = context
            return context

    def get(self, context_id: ContextId) -> Context | None:
        """Returns a context if it is open here."""
        return self._contexts.get(context_id)

    def find(self, context_id: object) -> Context:
        """Returns an open context.

        Raises:
            TypeError: `context_id` is no context id.
            ContextError: The context is released, or this worker does not know it.
        """
        known = check_context_id(context_id)
        if self._told:
            self.work_off()
        context = self._contexts.get(known)
        if context is None:
            raise ContextError(self.absence(known))
        return context

    def is_over(self, context_id: ContextId) -> bool:
        """Returns True if a context was released or its creator lost; False if it is unknown."""
        if creator_of(context_id) == self.agent.info.incarnation:
            return context_id not in self._contexts and 0 < number_of(context_id) <= self._created
        return context_id in self._released

    def absence(self, context_id: ContextId) -> str:
        """Returns the error message for a context that is not open here."""
        if self.is_over(context_id):
            return (
                f"autograd context {context_id} was released on worker {self.agent.info.name!r}; "
                "use it inside its `with dist_autograd.context()` block"
            )
        return (
            f"worker {self.agent.info.name!r} knows no autograd context {context_id}; it hears of "
            "one by the first call made to it inside `with dist_autograd.context()`"
        )

    def new_pass(self, context: Context) -> PassRunner:
        """Makes a pass that starts here.

        Raises:
            ContextError: The context was released meanwhile.
        """
        runner = self._add_pass(context, PassId.of(self.agent.info, next(self._next_pass)), None)
        if runner is None:
            raise ContextError(self.absence(context.id))
        return runner

    def runner(self, context_id: ContextId, pass_id: PassId, peer: WorkerInfo) -> PassRunner | None:
        """Returns this worker's part of a pass that a peer names, new if unknown.

        Returns:
            None if the context is released and the pass needs to hear of nobody any more.

        Raises:
            PoolExhaustedError: As in `enter`.
        """
        runner = self._passes.get(pass_id)
        if runner is None and (context := self.enter(context_id, peer)) is not None:
            runner = self._add_pass(context, pass_id, peer)
        return runner

    def passes(self, context: Context) -> list[PassRunner]:
        """Returns the passes of an open context that have reached this worker."""
        return list(map(self._passes.__getitem__, context.passes))

    def find_pass(self, pass_id: PassId) -> PassRunner | None:
        """Returns this worker's part of a pass, if it is known."""
        return self._passes.get(pass_id)

    def _add_pass(
        self, context: Context, pass_id: PassId, peer: WorkerInfo | None
    ) -> PassRunner | None:
        with critical.section, self._lock:
            runner = self._passes.get(pass_id)
            # The context may have been released since it was found: `_drop` has ended its passes,
            # and would miss this one.
            if runner is None and self._contexts.get(context.id) is context:
                if peer is not None:
                    self._count(context, peer)
                runner = PassRunner(self.agent, context, pass_id, self.desk)
                self._passes[pass_id] = runner
                context.passes.append(pass_id)
                context.keep(runner.gradients)
            return runner

    def _count(self, context: Context, peer: WorkerInfo) -> None:
        """Counts a context, or a pass of it, that a peer opens; the caller holds the lock.

        Raises:
            PoolExhaustedError: The peer has opened as many as it may.
        """
        opener = peer.incarnation
        if self._opened[opener] >= self._most_opened:
            raise PoolExhaustedError(
                f"worker {self.agent.info.name!r} has {self._most_opened} autograd contexts and "
                f"passes open for {peer.name!r}, as many as it keeps for one worker "
                "(Limits.served_calls_per_peer); leave some contexts first"
            )
        self._opened[opener] += 1
        context.opened[opener] += 1

    def later(self, release: Work) -> None:
        """Queues a peer's release; the next thread that uses a context handles it, or the pool.

        The event loop does not, as the context may keep objects of the user that have finalizers.
        """
        self._told.append(release)
        self._looks.start()

    def work_off(self) -> None:
        """Handles the queued releases of peers."""
        while self._told:
            try:
                release = self._told.popleft()
            except IndexError:  # another thread was faster
                return
            release()

    def _look(self) -> None:
        if self._told:
            self.agent.pool.submit(self.work_off)

    def release(
        self, context_id: ContextId, told_by: WorkerInfo | None = None, lowest: int = 0
    ) -> None:
        """Drops a context and tells the peers that it touched.

        Args:
            context_id: The context. An unknown one is remembered, so that no message revives it.
            told_by: The peer that sent the release; None at the creator itself. Without effect if
                it is neither the creator nor the introducer.
            lowest: The lowest open number, as the creator has sent it.
        """
        creator = creator_of(context_id)
        own, to_all = creator == self.agent.info.incarnation, False
        if own and told_by is not None:
            return  # nobody else ends this worker's contexts
        with critical.section, self._lock:
            if told_by is not None and told_by.incarnation != creator:
                lowest = 0  # only the creator knows it
                context = self._contexts.get(context_id)
                if context is None:  # it may have overtaken a message of the same peer
                    self._released.add_for(told_by, context_id)
                    return
                # An introducer that has left the job tells nobody: then the word of others counts.
                living = self.agent.members.living()
                if context.introducer != told_by and context.introducer in living:
                    return
            over = [context_id]
            if own:
                lowest = self._lowest()
                to_all = number_of(context_id) <= self._for_all
            else:
                self._released.rise(creator, lowest)
                self._released.add(context_id)
                # Contexts that `lowest` releases, whose own release did not come here.
                over += [each for each in self._contexts if each in self._released]
            dropped = self._drop(over)
        for each in dropped:
            self._close(each, lowest, told_by, to_all=to_all)

    def on_lost(self, worker: WorkerInfo, error: WorkerLostError) -> None:
        """Handles the loss of a worker: drops its contexts and aborts its passes."""
        with critical.section, self._lock:
            self._released.lose(worker)
            over = [each for each in self._contexts if creator_of(each) == worker.incarnation]
            self._for_all, lowest = self._created, self._lowest()
            runners, dropped = list(self._passes.values()), self._drop(over)
        for runner in runners:
            runner.lose(worker, error)
        for each in dropped:
            self._close(each, None, worker, error)  # all workers see the loss themselves
        if lowest > 1:
            released = make_context_id(self.agent.info.incarnation, lowest - 1)
            living = self.agent.members.living()
            others = [each for each in living if each != self.agent.info]
            self._tell(others, ReleaseMessage(released, lowest))

    def _give_up(self, error: BaseException) -> None:
        """Gives up all passes here: this worker leaves at once, or was evicted."""
        with critical.section, self._lock:
            runners = list(self._passes.values())
        for runner in runners:
            # In the pool: this may be the loop, and an abort runs code of the graph.
            if runner.waiting:
                self.agent.pool.submit(partial(runner.abort, error, at_once=True))

    def _drop(self, context_ids: Iterable[ContextId]) -> list[_Dropped]:
        """Removes contexts; their passes stay known until they have got all awaited messages.

        The caller holds the lock: a pass added meanwhile is one of these, or is refused.
        """
        dropped = []
        for context_id in context_ids:
            context = self._contexts.pop(context_id, None)
            if context is None:
                continue
            self._opened.subtract(context.opened)
            for opener in context.opened:
                if not self._opened[opener]:
                    del self._opened[opener]
            touched, recorded = context.release()
            passes = self.passes(context)
            over, self._ending = self._ending + passes, []
            for each in over:
                if each.waiting:
                    self._ending.append(each)
                else:
                    del self._passes[each.id]
            dropped.append(_Dropped(context_id, touched, passes, (recorded, over)))
        return dropped

    def _lowest(self) -> int:
        first = make_context_id(self.agent.info.incarnation, 0)
        own = range(first, first + self._created + 1)
        return min(filter(own.__contains__, self._contexts), default=own.stop) - first

    def _close(
        self,
        dropped: _Dropped,
        lowest: int | None,
        told_by: WorkerInfo | None,
        cause: BaseException | None = None,
        *,
        to_all: bool = False,
    ) -> None:
        touched = dropped.touched
        for runner in dropped.passes:
            if runner.running:
                runner.abort(cause or ContextError(self.absence(dropped.id)))
        if lowest is None:
            return
        for peer in touched.values():
            # A lost peer passes the release on to nobody.
            to_all = to_all or self.agent.members.lost(peer) is not None
        if to_all:
            touched |= {each.incarnation: each for each in self.agent.members.living()}
        if told_by is not None:
            touched.pop(told_by.incarnation, None)
        touched.pop(self.agent.info.incarnation, None)
        self._tell(touched.values(), ReleaseMessage(dropped.id, lowest))

    def _tell(self, peers: Collection[WorkerInfo], message: ReleaseMessage) -> None:
        body = message.to_wire() if peers else None
        for peer in peers:
            with suppress(WorkerLostError, UnknownWorkerError):
                self.agent.messages.post(peer, RELEASE, body, rides=True)


# -- handlers of messages about passes and contexts, which `desk` passes to threads --------------

Handle: TypeAlias = Callable[[WorkerInfo, Envelope], PassRunner | None]


@final
class Handlers:
    """The receiving end of the three kinds of messages."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self._agent = container.agent

    def register(self) -> None:
        """Registers the handlers on the agent."""
        for kind, handle in (PASS, self._hear), (ABORT, self._abort), (RELEASE, self._release):
            handler = partial(self._put, handle)
            self._agent.inbox.register(kind, handler, anywhere=True, takes_failed=kind == PASS)

    def _put(self, handle: Handle, peer: WorkerInfo, envelope: Envelope) -> None:
        read = partial(self._read, handle, peer, envelope)
        put = self._container.later if envelope.kind == RELEASE else self._container.desk.put
        put(read)

    def _read(
        self, handle: Handle, peer: WorkerInfo, envelope: Envelope
    ) -> Callable[[], None] | None:
        try:
            runner = handle(peer, envelope)
        except MemoryError as error:
            if error is not envelope.failure:
                raise
            runner = self._unreadable(peer, envelope, error)
        except DecodeError as error:
            self._tell_garbage(peer, envelope, error)
            runner = self._unreadable(peer, envelope, error) if envelope.kind == PASS else None
        return runner and runner.work

    def _tell_garbage(self, peer: WorkerInfo, envelope: Envelope, error: DecodeError) -> None:
        self._agent.inbox.tell_garbage(peer, envelope.kind, error)
        if envelope.call:
            self._agent.messages.reply_error(peer, envelope, error)

    def _hear(self, peer: WorkerInfo, envelope: Envelope) -> PassRunner | None:
        body = self._agent.messages.read(envelope, land=self._agent.codec.devices.land(peer))
        message = PassMessage.from_wire(body)
        context_id, pass_id = message.context_id, message.pass_id
        absent: TelegradError | None = None
        try:
            runner = self._container.runner(context_id, pass_id, peer)
        except PoolExhaustedError as error:
            runner, absent = None, error
        if runner is not None:
            runner.hear(peer, message)
        elif message.mode is not None:
            absent = absent or ContextError(self._container.absence(context_id))
            self._fail(peer, context_id, pass_id, absent)
        return runner

    def _unreadable(
        self, peer: WorkerInfo, envelope: Envelope, error: DecodeError | MemoryError
    ) -> PassRunner | None:
        """Fails the pass of an unreadable message, at its sender and at this worker."""
        try:
            context_id, pass_id = read_head_alone(envelope.document)
        except DecodeError:
            return None  # the pass is unknown
        runner = self._container.find_pass(pass_id)
        if runner is not None:
            # The message may have been the sender's last and may have held its reply. So this
            # worker no longer waits for that reply, but for the sender's reply to the abort.
            runner.abort(error)
            runner.hear(peer, PassMessage(context_id, pass_id, begun=True))
        self._fail(peer, context_id, pass_id, error)
        return runner

    def _fail(
        self, peer: WorkerInfo, context_id: ContextId, pass_id: PassId, cause: BaseException
    ) -> None:
        """Makes a pass fail at the peer that began it here."""
        message = PassMessage(context_id, pass_id, begun=True, cause=cause)
        with suppress(WorkerLostError, UnknownWorkerError):
            self._agent.messages.post(peer, PASS, message.to_wire(self._agent.info.name))

    def _abort(self, peer: WorkerInfo, envelope: Envelope) -> PassRunner | None:
        message = PassMessage.from_wire(self._agent.messages.read(envelope))
        runner: PassRunner | None = None
        with suppress(PoolExhaustedError):  # a pass that is not even remembered needs no abort
            runner = self._container.runner(message.context_id, message.pass_id, peer)
        if runner is None:
            self._agent.messages.reply(peer, envelope)
        else:
            cause = message.cause or RemoteError("the backward pass was aborted without a cause")
            runner.abort(cause, (peer, envelope))
        return runner

    def _release(self, peer: WorkerInfo, envelope: Envelope) -> None:
        message = ReleaseMessage.from_wire(self._agent.messages.read(envelope))
        self._container.release(message.context_id, peer, message.lowest)
