"""The mailbox of one place: activations and gradients from other stages, and the way there.

    stage 0, worker a                             stage 1, worker b
    carry(key, arrays) ── one message ──▶ inbox ──▶ mailbox.put ──▶ the thread that runs the row

A message needs no reply and holds no thread of its receiver: it is put where the receiver's row
looks for it. A row that waits hears at once of the end of the step: its deadline, the loss of a
worker, or the failure of another stage.

The first step records what is handed over: for each track, a pair of stages with dtypes and shapes,
the sender draws a number, and tells it with the arrays. In later steps the number, the step and the
micro-batch stand before the bytes, at fixed places, and nothing is described again. Values of
other shapes are described, as in the first step, and recorded in turn.

A mailbox keeps the values that its row takes, for the step that runs or is next and for one more: a
driver that gave a step up may begin the next one sooner than this place hears of it. All other
messages break the protocol, so a peer can fill a mailbox with no more than that.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias, final
from weakref import WeakValueDictionary

import numpy as np

from telegrad.critical import critical
from telegrad.errors import (
    CallTimeoutError,
    DecodeError,
    UnknownWorkerError,
    WorkerLostError,
)
from telegrad.rpc.seams import AgentCore, Gate, Stay, fresh_copy, keep_newest
from telegrad.types import Shape, WorkerInfo

CARRY = "pipeline.carry"  # [*place, step, *key, track, values]; the track is 0 for none
AGAIN = "pipeline.again"  # the numbers of AGAIN_HEAD, and the bytes of the arrays
END = "pipeline.end"  # [*place, step]: the step has failed elsewhere

AGAIN_HEAD = struct.Struct(">5Q")  # *place, step, micro-batch, track

PLACE_BITS = 32  # the number of a track is its place, and so many bits
# Seconds after which a row tells the pool of threads that it waits: telling takes 15 us, and most
# values come sooner.
BRIEF_SECONDS = 0.001
MOST_TRACKS = 256  # of one place and its neighbour; more than the shapes of any steady training


class PlaceId(NamedTuple):
    """The name of one place of one pipeline.

    Attributes:
        pipeline: A number that its driver has drawn.
        place: The number of the place, from 0.
    """

    pipeline: int
    place: int


class Peer(NamedTuple):
    """A place as another one sees it.

    Attributes:
        id: Its name.
        worker: Its worker.
        here: True if that is this worker.
    """

    id: PlaceId
    worker: WorkerInfo
    here: bool


class Key(NamedTuple):
    """The name of a value that one stage hands to another in one step.

    Attributes:
        kind: `F` for an activation, `B` for a gradient.
        stage: The stage that takes it.
        micro_batch: The micro-batch.
        name: The name of a skip connection, or the number of a bucket of gradients; empty for all
            other values.
    """

    kind: str
    stage: int
    micro_batch: int
    name: str = ""


class EndedElsewhereError(Exception):
    """The step has failed at another place, whose error the driver has."""


Layouts: TypeAlias = "tuple[tuple[str, Shape] | None, ...]"
"""The dtype and the shape of each array; None for a missing gradient."""


class Track(NamedTuple):
    """What a number stands for: a kind of value from one stage to another.

    Attributes:
        kind: As of the key.
        stage: As of the key.
        name: As of the key.
        layouts: The arrays.
    """

    kind: str
    stage: int
    name: str
    layouts: Layouts


@final
class Recording:
    """The tracks of one place: those that it sends on, and those that it receives.

    A track that a step records counts from the next step on, as messages of one step may overtake
    each other. A step that fails anywhere takes all recordings with it.

    Args:
        place: The place; its numbers differ from those of other places of its worker.
        workers: The worker of each place.

    Attributes:
        sent: The numbers of the tracks that their receivers know: by the receiver, and the values
            of the track.
    """

    def __init__(self, place: int, workers: Sequence[WorkerInfo]) -> None:
        self.sent: dict[tuple[Any, ...], int] = {}
        self._new: dict[tuple[Any, ...], int] = {}
        self._received: dict[tuple[WorkerInfo, int], dict[int, Track]] = {}  # by peer and place
        self._drawn = place << PLACE_BITS
        self._workers = workers
        self._lock = threading.Lock()  # guards what is received

    def draw(self, to: PlaceId, track: Track) -> int:
        """Returns the number of a track that its receiver does not know yet; 0 for no number."""
        if len(self.sent) + len(self._new) >= MOST_TRACKS:
            return 0
        known = self._new.get((to, *track))
        if known is None:
            self._drawn += 1
            known = self._new[to, *track] = self._drawn
        return known

    def begin_step(self, *, afresh: bool) -> None:
        """Begins a step: what the last one recorded counts from now on.

        Args:
            afresh: True if the last step failed: then nothing counts.
        """
        self.sent = {} if afresh else self.sent | self._new
        self._new = {}

    def hear(self, peer: WorkerInfo, number: int, track: Track) -> None:
        """Records a track of a peer; the oldest, which no sender uses any more, are dropped.

        Raises:
            DecodeError: The number is of no place of the peer.
        """
        place = number >> PLACE_BITS
        if place not in range(len(self._workers)) or self._workers[place] != peer:
            raise DecodeError(f"track {number} is of place {place}, which is not on the sender")
        with critical.section, self._lock:
            known = self._received.setdefault((peer, place), {})
            known[number] = track
            keep_newest(known, 2 * MOST_TRACKS)

    def find(self, peer: WorkerInfo, number: int) -> Track | None:
        """Returns a track of a peer."""
        return self._received.get((peer, number >> PLACE_BITS), {}).get(number)


@final
class PlaceMailbox:
    """The values for one place, by step and key.

    All methods may be called from any thread; only the row waits.

    Args:
        me: The place.
        workers: The worker of each place.
        driver: The worker that trains the pipeline.
        begun: The number of the last step, which other places may have seen.
        stay: Reads arrived messages in the thread that runs the row.

    Attributes:
        peers: The workers whose loss ends a step.
        driver: The worker that trains the pipeline.
        recording: The tracks of the place.
        expected: The keys of all values that its row takes.
        error: The error that ends the step that runs; None while it goes on.
    """

    def __init__(
        self,
        me: PlaceId,
        workers: Sequence[WorkerInfo],
        driver: WorkerInfo,
        begun: int,
        stay: Stay,
    ) -> None:
        self.me = me
        self.peers, self.driver = frozenset([*workers, driver]), driver
        self._stay = stay
        self.recording = Recording(me.place, workers)
        self.expected: Container[Key] = ()
        self._lock = threading.Lock()
        self._gate: Gate | None = None  # of the row while it waits
        self._wanted: tuple[int, Key] | None = None  # what it waits for, or waited for last
        self._values: dict[tuple[int, Key], Any] = {}
        self._step = begun + 1  # the one that runs or is next
        self._undo: Callable[[], None] = _nothing
        self._failed = 0  # the last step that failed elsewhere, perhaps before it began here
        self.error: BaseException | None = None
        self._deadline = 0.0

    def begin(self, step: int, deadline: float, *, afresh: bool) -> None:
        """Starts a step: values of earlier ones are dropped, those that came early are kept.

        Args:
            step: The step.
            deadline: Its end, on the clock of `time.monotonic`.
            afresh: True if the step before it failed.
        """
        self.recording.begin_step(afresh=afresh)
        with critical.section, self._lock:
            self._step, self._deadline, self._undo = step, deadline, _nothing
            self.error = EndedElsewhereError() if self._failed >= step else None
            self._values = {key: x for key, x in self._values.items() if key[0] >= step}

    def end(self, undo: Callable[[], None]) -> None:
        """Ends the step: what comes for it from now on is dropped.

        Args:
            undo: Takes back what the step left, in case that it fails elsewhere; must not block.
        """
        self._stay.end()
        with critical.section, self._lock:
            over, self._undo = self._step, undo
            self._step = over + 1
            self._values = {key: x for key, x in self._values.items() if key[0] > over}

    def put(self, step: int, key: Key, values: Any) -> None:
        """Takes a value, unless its step is over or has failed.

        Raises:
            DecodeError: The row takes no such value, or its step is too far ahead.
        """
        with critical.section, self._lock:
            if step < self._step or step <= self._failed:
                return
            if step > max(self._step, self._failed + 1) + 1:
                raise DecodeError(
                    f"step {step} is too far ahead: place {self.me.place} is at step {self._step}"
                )
            if key not in self.expected:
                raise DecodeError(f"place {self.me.place} takes no value {tuple(key)}")
            self._values[step, key] = values
            if self._wanted == (step, key):
                self._open_gate()

    def take(self, key: Key) -> Any:
        """Waits for a value of the step that runs, and removes it.

        Raises:
            BaseException: The error that ends the step; CallTimeoutError at its deadline.
        """
        wanted, gate = (self._step, key), None
        while True:
            with critical.section, self._lock:
                if self.error is not None:
                    raise self.error
                values = self._values.pop(wanted, None)
                if values is not None:
                    break
                self._wanted, gate = wanted, Gate()
                self._gate = gate
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise CallTimeoutError("the time of the step is over", phase="waiting")
            self._stay.wait(gate, min(left, BRIEF_SECONDS))
            if gate.shut:
                gate.wait(left, drive=self._stay.wait)
        if gate is None:  # it has not waited, and so has not read
            self._stay.look()
        return values

    def look(self) -> None:
        """Reads what has come, before work that takes no value; never waits."""
        self._stay.look()

    def _open_gate(self) -> None:
        """Lets the row look again; holds the lock."""
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.open()

    def __len__(self) -> int:
        """Returns the number of values that nobody has taken yet."""
        return len(self._values)

    def fail(self, error: BaseException) -> None:
        """Ends the step that runs with an error; the first one counts."""
        with critical.section, self._lock:
            if self.error is None:
                self.error = error
                self._open_gate()

    def end_elsewhere(self, step: int) -> None:
        """Ends a step that has failed elsewhere, now or when it begins; drops its values."""
        with critical.section, self._lock:
            self._failed = max(self._failed, step)
            self._values = {key: x for key, x in self._values.items() if key[0] > self._failed}
            if self.error is None and step == self._step:
                self.error = EndedElsewhereError()
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
        self._known: WeakValueDictionary[tuple[int, int], PlaceMailbox] = WeakValueDictionary()

    def open(
        self, place: PlaceId, workers: Sequence[WorkerInfo], driver: WorkerInfo, begun: int
    ) -> PlaceMailbox:
        """Makes the mailbox of a place; the arguments are those of the mailbox."""
        stay = Stay(self._agent.exchange.reader)
        mailbox = self._known[place] = PlaceMailbox(place, workers, driver, begun, stay)
        return mailbox

    def peers(self, pipeline: int, workers: Sequence[WorkerInfo]) -> list[Peer]:
        """Returns the places of a pipeline, whose workers are given, as this worker sees them."""
        return [
            Peer(PlaceId(pipeline, place), worker, worker == self._agent.info)
            for place, worker in enumerate(workers)
        ]

    def __len__(self) -> int:
        """Returns the number of values that nobody has taken yet."""
        return sum(map(len, list(self._known.values())))

    def carry(self, to: Peer, step: int, key: Key, values: Any, sender: PlaceMailbox) -> None:
        """Hands values to a place, by one message; at once where it is of this worker.

        Args:
            to: The place.
            step: The step.
            key: The key under which the place looks for the values.
            values: Arrays, or None for one that has no gradient. Nobody may write into them.
            sender: The mailbox of the place that hands them over.

        Raises:
            WorkerLostError: The worker is lost.
        """
        place = to.id
        if to.here:
            if (mailbox := self._known.get(place)) is not None:
                mailbox.put(step, key, values)
            return
        kind, stage, batch, name = key
        layouts, recording = _layouts(values), sender.recording
        number = recording.sent.get((place, kind, stage, name, layouts))
        if number is None:
            number = 0
            if layouts is not None:
                number = recording.draw(place, Track(kind, stage, name, layouts))
            body = [*place, step, *key, number, values]
            self._agent.messages.post(to.worker, CARRY, body)
            return
        head = AGAIN_HEAD.pack(*place, step, batch, number)
        arrays = [memoryview(x.reshape(-1).view(np.uint8)) for x in values if x is not None]
        self._agent.messages.post_packed(to.worker, AGAIN, head, arrays)

    def end(self, to: WorkerInfo, place: PlaceId, step: int) -> None:
        """Tells a place that a step has failed elsewhere; does nothing where its worker is lost."""
        with suppress(WorkerLostError, UnknownWorkerError):
            self._agent.messages.post(to, END, [*place, step])

    def on_carry(self, peer: WorkerInfo, envelope: Any) -> None:
        """Takes what another place hands over."""
        if envelope.externals:
            land = self._agent.codec.devices.land(peer)
            body = self._agent.messages.read(envelope, land=land)
        else:
            body = self._agent.messages.read(envelope)
        match body:
            case [
                int(pipeline),
                int(place),
                int(step),
                str(kind),
                int(stage),
                int(batch),
                str(name),
                int(number),
                list(values),
            ]:
                mailbox = self._find(peer, pipeline, place)
                if mailbox is None:
                    return
                if number and (layouts := _layouts(values)) is not None:
                    mailbox.recording.hear(peer, number, Track(kind, stage, name, layouts))
                mailbox.put(step, Key(kind, stage, batch, name), values)
            case _:
                raise DecodeError(f"the body of {CARRY} is not [place, step, key, track, values]")

    def on_again(self, peer: WorkerInfo, envelope: Any) -> None:
        """Takes what another place hands over on a recorded track."""
        try:
            pipeline, place, step, batch, number = AGAIN_HEAD.unpack(envelope.document)
        except struct.error:
            raise DecodeError(
                f"the body of {AGAIN} is not place, step, micro-batch and track, "
                f"{AGAIN_HEAD.size} bytes"
            ) from None
        mailbox = self._known.get((pipeline, place))
        if mailbox is None:
            return
        track = mailbox.recording.find(peer, number)
        if track is None:
            if peer not in mailbox.peers:
                return
            raise DecodeError(f"{AGAIN} names track {number}, of which nothing was heard")
        buffers = iter(envelope.buffers)
        try:
            values = [
                None if each is None else np.frombuffer(next(buffers), each[0]).reshape(each[1])
                for each in track.layouts
            ]
        except (ValueError, StopIteration):
            raise DecodeError(f"the arrays of {AGAIN} are not those of track {number}") from None
        mailbox.put(step, Key(track.kind, track.stage, batch, track.name), values)

    def _find(self, peer: WorkerInfo, pipeline: int, place: int) -> PlaceMailbox | None:
        """Returns the mailbox of a place, if the peer belongs to its pipeline."""
        mailbox = self._known.get((pipeline, place))
        return mailbox if mailbox is not None and peer in mailbox.peers else None

    def on_end(self, peer: WorkerInfo, envelope: Any) -> None:
        """Hears that a step has failed elsewhere."""
        match self._agent.messages.read(envelope):
            case [int(pipeline), int(place), int(step)]:
                if (mailbox := self._find(peer, pipeline, place)) is None:
                    return
                if peer != mailbox.driver:
                    raise DecodeError("only the driver of a pipeline ends a step")
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
    """Attaches pipelines' mailboxes to an agent; the composition root does so before it opens."""
    mailboxes = Mailboxes(agent)
    agent.attachments.attach(mailboxes)
    agent.inbox.on_loss_at_once(mailboxes.lose)
    agent.calling.on_given_up(mailboxes.give_up)
    for kind, handle in (
        (CARRY, mailboxes.on_carry),
        (AGAIN, mailboxes.on_again),
        (END, mailboxes.on_end),
    ):
        agent.inbox.register(kind, handle, anywhere=True)
    return mailboxes


def _layouts(values: Sequence[Any]) -> Layouts | None:
    """Returns the layouts of arrays whose bytes may be sent as they lie; None for others."""
    found: list[tuple[str, Shape] | None] = []
    for x in values:
        if x is None:
            found.append(None)
            continue
        if type(x) is not np.ndarray or not x.flags.c_contiguous or x.dtype.kind not in "fciub":
            return None
        found.append((x.dtype.str, x.shape))
    return tuple(found)


def _nothing() -> None:
    pass
