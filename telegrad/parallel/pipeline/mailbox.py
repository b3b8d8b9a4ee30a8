"""The mailbox of one place: activations and gradients that other stages hand over, and the way there.

    stage 0, worker a                             stage 1, worker b
    carry(key, arrays) ── one message ──▶ inbox ──▶ mailbox.put ──▶ the thread that runs the row

A message needs no reply and holds no thread of its receiver: it is put where the row of the receiver
looks for it. A row that waits hears at once of the end of the step: its deadline, the loss of a
worker, or the failure of another stage.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, final
from weakref import WeakValueDictionary

from telegrad.errors import (
    CallTimeoutError,
    DecodeError,
    UnknownWorkerError,
    WorkerLostError,
)
from telegrad.rpc.seams import AgentCore, Drive, Gate, fresh_copy
from telegrad.types import WorkerInfo

__all__ = ["CARRY", "END", "Key", "Mailbox", "Mailboxes", "PlaceId", "attach_to"]

CARRY = "pipeline.carry"  # [*place, step, *key, values]
END = "pipeline.end"  # [*place, step]: the step has failed elsewhere


class PlaceId(NamedTuple):
    """The name of one place of one pipeline.

    Attributes:
        pipeline: A number that its driver has drawn.
        place: The number of the place, from 0.
    """

    pipeline: int
    place: int


class Key(NamedTuple):
    """The name of a value that one stage hands to another in one step.

    Attributes:
        kind: `F` for an activation, `B` for a gradient.
        stage: The stage that takes it.
        micro_batch: The micro-batch.
        name: The name of a skip connection or of a tied weight; empty for the values that neighbours
            exchange.
    """

    kind: str
    stage: int
    micro_batch: int
    name: str = ""


class EndedElsewhereError(Exception):
    """The step has failed at another place, whose error the driver has."""


@final
class Mailbox:
    """The values for one place, by step and key.

    All methods may be called from any thread; only the row waits.

    Args:
        me: The place.
        peers: The workers whose loss ends a step.
        drive: Reads arrived messages in the thread that waits.
    """

    def __init__(self, me: PlaceId, peers: Sequence[WorkerInfo], drive: Drive) -> None:
        self.me = me
        self.peers = frozenset(peers)
        self._drive = drive
        self._lock = threading.Lock()
        self._gate: Gate | None = None  # of the row while it waits
        self._values: dict[tuple[int, Key], Any] = {}
        self._step = 0  # the one that runs, or ran last
        self._undo: Callable[[], None] = _nothing
        self._failed = 0  # the last step that failed elsewhere, perhaps before it began here
        self._error: BaseException | None = None
        self._deadline = 0.0

    def begin(self, step: int, deadline: float) -> None:
        """Starts a step: values of earlier ones are dropped, those that came early are kept."""
        with self._lock:
            self._step, self._deadline, self._undo = step, deadline, _nothing
            self._error = EndedElsewhereError() if self._failed >= step else None
            self._values = {key: x for key, x in self._values.items() if key[0] >= step}

    def end(self, undo: Callable[[], None]) -> None:
        """Ends the step: what comes for it from now on is dropped.

        Args:
            undo: Takes back what the step left, in case that it fails elsewhere; must not block.
        """
        with self._lock:
            over, self._undo = self._step, undo
            self._step = over + 1
            self._values = {key: x for key, x in self._values.items() if key[0] > over}

    def put(self, step: int, key: Key, values: Any) -> None:
        """Takes a value, unless its step is over."""
        with self._lock:
            if step >= self._step:
                self._values[step, key] = values
                self._open_gate()

    def take(self, key: Key) -> Any:
        """Waits for a value of the step that runs, and removes it.

        Raises:
            BaseException: The error that ends the step; CallTimeoutError at its deadline.
        """
        wanted = (self._step, key)
        while True:
            with self._lock:
                if self._error is not None:
                    raise self._error
                if wanted in self._values:
                    return self._values.pop(wanted)
                gate = self._gate = Gate()
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise CallTimeoutError("the time of the step is over", phase="waiting")
            gate.wait(left, drive=self._drive)

    def _open_gate(self) -> None:
        """Lets the row look again; holds the lock."""
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.open()

    def check(self) -> None:
        """Raises the error that ends the step that runs, if there is one."""
        if self._error is not None:
            raise self._error

    def fail(self, error: BaseException) -> None:
        """Ends the step that runs with an error; the first one counts."""
        with self._lock:
            if self._error is None:
                self._error = error
                self._open_gate()

    def end_elsewhere(self, step: int) -> None:
        """Ends a step that has failed elsewhere, now or when it begins."""
        with self._lock:
            self._failed = max(self._failed, step)
            if self._error is None and step == self._step:
                self._error = EndedElsewhereError()
                self._open_gate()
            undo = self._undo if step == self._step - 1 else _nothing
        undo()


@final
class Mailboxes:
    """The mailboxes of one worker, attached to its agent, and the messages between them.

    A mailbox is kept by the runner that owns it; here it ends with that.

    Args:
        agent: This worker's agent.
    """

    def __init__(self, agent: AgentCore) -> None:
        self._agent = agent
        self._known: WeakValueDictionary[PlaceId, Mailbox] = WeakValueDictionary()

    def open(self, place: PlaceId, peers: Sequence[WorkerInfo]) -> Mailbox:
        """Makes the mailbox of a place."""
        drive = self._agent.exchange.reader.wait
        mailbox = self._known[place] = Mailbox(place, peers, drive)
        return mailbox

    def carry(self, to: WorkerInfo, place: PlaceId, step: int, key: Key, values: Any) -> None:
        """Hands values to a place, by one message; at once where it is of this worker.

        Args:
            to: The worker of the place.
            place: The place.
            step: The step.
            key: The key under which the place looks for the values.
            values: Arrays, or None for one that has no gradient. Nobody may write into them.

        Raises:
            WorkerLostError: The worker is lost.
        """
        if to == self._agent.info:
            if (mailbox := self._known.get(place)) is not None:
                mailbox.put(step, key, values)
            return
        self._agent.messages.post(to, CARRY, [*place, step, *key, values])

    def end(self, to: WorkerInfo, place: PlaceId, step: int) -> None:
        """Tells a place that a step has failed elsewhere; does nothing where its worker is lost."""
        with suppress(WorkerLostError, UnknownWorkerError):
            self._agent.messages.post(to, END, [*place, step])

    def on_carry(self, peer: WorkerInfo, body: object) -> None:
        """Takes what another place hands over."""
        match body:
            case [
                int(pipeline),
                int(place),
                int(step),
                str(kind),
                int(stage),
                int(batch),
                str(name),
                list(values),
            ]:
                mailbox = self._known.get(PlaceId(pipeline, place))
                if mailbox is not None and peer in mailbox.peers:
                    mailbox.put(step, Key(kind, stage, batch, name), values)
            case _:
                raise DecodeError(f"the body of {CARRY} is not [place, step, key, values]")

    def on_end(self, peer: WorkerInfo, body: object) -> None:
        """Hears that a step has failed elsewhere."""
        match body:
            case [int(pipeline), int(place), int(step)]:
                mailbox = self._known.get(PlaceId(pipeline, place))
                if mailbox is not None and peer in mailbox.peers:
                    mailbox.end_elsewhere(step)
            case _:
                raise DecodeError(f"the body of {END} is not [place, step]")

    def lose(self, worker: WorkerInfo, error: WorkerLostError) -> None:
        """Ends the steps that a lost worker takes part in."""
        for mailbox in list(self._known.values()):
            if worker in mailbox.peers:
                mailbox.fail(fresh_copy(error))

    def give_up(self, error: BaseException) -> None:
        """Ends all steps, as this worker leaves or was evicted."""
        for mailbox in list(self._known.values()):
            mailbox.fail(fresh_copy(error))


def attach_to(agent: AgentCore) -> Mailboxes:
    """Attaches the mailboxes of pipelines to an agent; the composition root does so before it opens."""
    mailboxes = Mailboxes(agent)
    agent.attachments.attach(mailboxes)
    agent.inbox.on_loss_at_once(mailboxes.lose)
    agent.calling.on_given_up(mailboxes.give_up)
    for kind, handle in ((CARRY, mailboxes.on_carry), (END, mailboxes.on_end)):
        agent.inbox.register(kind, _reading(agent, handle), anywhere=True)
    return mailboxes


def _nothing() -> None:
    pass


def _reading(
    agent: AgentCore, handle: Callable[[WorkerInfo, object], None]
) -> Callable[[WorkerInfo, Any], None]:
    def read(peer: WorkerInfo, envelope: Any) -> None:
        land = agent.codec.devices.land(peer) if envelope.externals else None
        body = (
            agent.messages.read(envelope)
            if land is None
            else agent.messages.read(envelope, land=land)
        )
        handle(peer, body)

    return read
