"""A faulty network for tests, the transport over it, and a transport that can be killed.

A cut holds messages back, as a network that loses packets does: nobody is told. If the cut ends
before the silence was too long, everything arrives. Carriers that begin while the network is cut
break in their handshake, and are dialled again.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import TypeAlias, final
from weakref import WeakSet

from google.protobuf.message import DecodeError as ProtobufError

from telegrad import pb
from telegrad.errors import DecodeError
from telegrad.rpc.seams import current_agent
from telegrad.testing.fault_plan import (
    HANDSHAKE,
    Fault,
    FaultPlan,
    Judge,
    Passing,
    Verdict,
    is_handshake,
)
from telegrad.transport import Carrier, CarrierClosedError, Listener, Transport, WrappedCarrier
from telegrad.wire import DecodeLimits, unpack_frame

_ANY_SIZE = DecodeLimits(document_bytes=2**63, message_bytes=2**63)
Names: TypeAlias = str | Sequence[str]  # of workers, as patterns: "worker0", ["worker0", "ps*"]


@final
@dataclass(frozen=True, slots=True)
class Injected:
    """One fault that was made.

    Attributes:
        passing: The message that was struck.
        verdict: The fault.

    Example:
        >>> import math
        >>> from telegrad import rpc
        >>> from telegrad.testing import Cluster, Fault, FaultPlan, FaultRule
        >>> plan = FaultPlan(rules=[FaultRule(Fault.DUPLICATE, "rpc.call")])
        >>> with Cluster(2, faults=plan) as cluster:
        ...     root = cluster.call(0, rpc.rpc_sync, "worker1", math.sqrt, (4.0,))
        ...     [(each.passing.sender, each.verdict.fault) for each in cluster.network.injected()]
        [('worker0', <Fault.DUPLICATE: 'duplicate'>)]
    """

    passing: Passing
    verdict: Verdict


@final
@dataclass(frozen=True, slots=True)
class FaultStatistics:
    """The counts of a faulty network so far.

    Attributes:
        messages: Messages that were judged; handshakes included.
        carriers: Carriers that were opened, counted at each faulty end.
        dropped: Messages that never arrived.
        delayed: Messages that arrived later.
        duplicated: Messages that arrived twice.
        reordered: Messages that arrived behind the next one.
        killed: Carriers that broke, by the plan or by `FaultyNetwork.kill`.
        held: Messages that waited because of a cut.
        unreachable: Dials and handshakes that failed because of a cut.

    Example:
        >>> import math
        >>> from telegrad import rpc
        >>> from telegrad.testing import Cluster, Fault, FaultPlan, FaultRule
        >>> plan = FaultPlan(rules=[FaultRule(Fault.DUPLICATE, "rpc.call")])
        >>> with Cluster(2, faults=plan) as cluster:
        ...     root = cluster.call(0, rpc.rpc_sync, "worker1", math.sqrt, (4.0,))
        ...     cluster.network.statistics().duplicated
        1
    """

    messages: int = 0
    carriers: int = 0
    dropped: int = 0
    delayed: int = 0
    duplicated: int = 0
    reordered: int = 0
    killed: int = 0
    held: int = 0
    unreachable: int = 0

    @property
    def faults(self) -> int:
        """The number of messages that were struck, and of carriers that were broken."""
        return self.dropped + self.delayed + self.duplicated + self.reordered + self.killed


COUNTED = {
    Fault.DROP: "dropped",
    Fault.DELAY: "delayed",
    Fault.DUPLICATE: "duplicated",
    Fault.REORDER: "reordered",
    Fault.KILL: "killed",
    Fault.KILL_AFTER: "killed",
}


@final
@dataclass(frozen=True, slots=True)
class _Cut:
    """A cut between these workers and those; both ways, or only for messages from these."""

    these: tuple[str, ...]
    those: tuple[str, ...]
    one_way: bool = False

    def separates(self, sender: str, receiver: str) -> bool:
        """Returns True if it cuts the way from one worker to another."""
        if _among(sender, self.these) and _among(receiver, self.those):
            return True
        return not self.one_way and _among(sender, self.those) and _among(receiver, self.these)


@final
class FaultyNetwork:
    """The network of one test job, with a plan; shared by the faulty transports of its workers.

    Workers may live in several processes, each with a network of the same plan. Faults by chance
    are then the same as in one process; rules and `FaultPlan.most` count in each process by itself.

    All methods may be called from any thread.

    Args:
        plan: The faults that happen by themselves; none by default.

    Example:
        >>> from telegrad.testing import Cluster, FaultPlan
        >>> with Cluster(2, faults=FaultPlan()) as cluster:
        ...     cluster.network.partition("worker0")
        ...     cluster.network.heal()
        ...     type(cluster.network).__name__
        'FaultyNetwork'
    """

    def __init__(self, plan: FaultPlan | None = None) -> None:
        self.plan = FaultPlan() if plan is None else plan
        self._faults_lock = threading.Lock()  # guards all attributes below
        self._judge = Judge(self.plan)
        self._counts: Counter[str] = Counter()
        self._injected: list[Injected] = []
        self._cuts: list[_Cut] = []
        self._numbers: Counter[str] = Counter()
        self._called: dict[str, str] = {}  # the name in a line's handshake, to the worker's name
        self._open: WeakSet[_FaultyCarrier] = WeakSet()

    def partition(self, these: Names = "*", those: Names = "*", *, one_way: bool = False) -> None:
        """Cuts the network between workers, until it is healed; cuts add up.

        Each of `these` is cut off from each of `those`: `partition("worker0")` cuts worker0 off
        from all others, `partition()` cuts all workers off from each other. The coordinator is
        called `coordinator`; the job gives up a worker that is cut off from it for longer than
        `lost_after`.

        Args:
            these: Names, or patterns of names.
            those: Names, or patterns of names.
            one_way: True if only messages from `these` to `those` are held back, and not the
                reverse.
        """
        with self._faults_lock:
            self._cuts.append(_Cut(_names(these), _names(those), one_way))

    def heal(self) -> None:
        """Removes all cuts; the messages that were held back arrive."""
        with self._faults_lock:
            self._cuts.clear()
            opened = list(self._open)
        for carrier in opened:
            carrier.look_again()

    def kill(self, these: Names = "*", those: Names = "*") -> None:
        """Breaks the carriers between workers soon; workers may dial again."""
        cut = _Cut(_names(these), _names(those))
        with self._faults_lock:
            opened = list(self._open)
        for carrier in opened:
            if cut.separates(carrier.here, carrier.there):
                carrier.kill_soon()

    def statistics(self) -> FaultStatistics:
        """Returns the counts so far."""
        with self._faults_lock:
            return FaultStatistics(**self._counts)

    def injected(self) -> list[Injected]:
        """Returns all faults that the plan has made so far, in their order."""
        with self._faults_lock:
            return list(self._injected)

    def __repr__(self) -> str:
        """Shows the plan, with the seed to reproduce a failed test, and the counts."""
        counts = self.statistics()
        said = [f"{each.name}: {getattr(counts, each.name)}" for each in fields(counts)]
        return f"<FaultyNetwork of {self.plan!r} ({', '.join(said)})>"

    # For the carriers.

    def opened(self, carrier: _FaultyCarrier) -> None:
        """Registers a new end of a carrier."""
        with self._faults_lock:
            self._open.add(carrier)
            self._counts["carriers"] += 1

    def is_cut(self, sender: str, receiver: str) -> bool:
        """Returns True if nothing gets from one worker to another; "" means any worker."""
        with self._faults_lock:
            return any(cut.separates(sender, receiver) for cut in self._cuts)

    def count(self, name: str) -> None:
        """Adds one to a field of the statistics."""
        with self._faults_lock:
            self._counts[name] += 1

    def number(self, ends: str, purpose: str, here: str) -> str:
        """Returns the name of a carrier, as seen from one of its ends."""
        direction = f"{ends} {purpose}, from {here}"
        with self._faults_lock:
            self._numbers[direction] += 1
            return f"{ends} {purpose} {self._numbers[direction]}, from {here}"

    def called(self, said: str, name: str = "") -> str:
        """Returns the name of a worker that states `said`; remembers `name` for it if given."""
        with self._faults_lock:
            if name and said:
                self._called[said] = name
            return self._called.get(said, said)

    def judged(self, passing: Passing) -> Verdict | None:
        """Returns the fault for the next message; None for no fault."""
        with self._faults_lock:
            self._counts["messages"] += 1
            verdict = self._judge.judge(passing)
            if verdict is not None:
                self._counts[COUNTED[verdict.fault]] += 1
                self._injected.append(Injected(passing, verdict))
            return verdict


def faulty_network() -> FaultyNetwork:
    """Returns the ambient agent's faulty network; for a function that a cluster runs.

    Raises:
        NotInitializedError: The cluster's network is sound.

    Example:
        >>> from telegrad.testing import Cluster, FaultPlan
        >>> with Cluster(2, faults=FaultPlan()) as cluster:
        ...     cluster.call(0, faulty_network) is cluster.network
        True
    """
    return current_agent().attachments[FaultyNetwork]


def _names(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _among(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


# -- the messages on a carrier: their workers, purpose and kinds ---------------------------------
#
# A worker's line to the coordinator states a name of its own, `store.<rank>.<a number drawn at
# random>.<the worker's name>`. Here it counts as `store.<rank>`, so that a seed has the same effect
# in every run.
#
# The first two messages of each direction are the handshake: a letter and a protobuf message.
# Frames follow on a control stream, each behind a tag if the job has a token and no TLS.

CONTROL = "control"
TAG_BYTES = 16
HANDSHAKE_MESSAGES = 2  # in each direction
LINE = re.compile(r"(store\.-?\d+)\.[0-9a-f]+(\..*)?")
LETTERS = {b"H": "hello", b"P": "proof", b"W": "welcome", b"R": "refusal"}


@final
class CarrierReader:
    """The facts that one end of a carrier knows from its messages. Pure; not thread-safe.

    Attributes:
        here: The name of the worker at this end; empty until its hello has passed.
        there: The name of the worker at the other end; empty until it is known.
        purpose: The purpose of the carrier; empty until the dialler's hello has passed.
        sent: The number of messages that this end has sent.

    Args:
        dialled: True if this end dialled.
        tls: True if the carrier is encrypted, so that frames need no tags.
    """

    def __init__(self, *, dialled: bool, tls: bool = False) -> None:
        self.here = ""
        self.there = ""
        self.purpose = ""
        self.sent = 0
        self._received = 0
        self._dialled = dialled
        self._tls = tls
        self._tagged = False

    @property
    def proved(self) -> bool:
        """True if this end has received the whole handshake of the other end."""
        return self._received >= HANDSHAKE_MESSAGES

    def sends(self, message: bytes) -> tuple[str, ...]:
        """Reads a message that this end sends; returns the kinds of its content."""
        self.sent += 1
        return self._read(message, self.sent, own=True)

    def receives(self, message: bytes) -> tuple[str, ...]:
        """Reads a message that this end received; returns the kinds of its content."""
        self._received += 1
        return self._read(message, self._received, own=False)

    def _read(self, message: bytes, number: int, *, own: bool) -> tuple[str, ...]:
        try:
            if number <= HANDSHAKE_MESSAGES:
                return (self._read_handshake(message, own=own),)
            if self.purpose != CONTROL:
                return (self.purpose,)
            return kinds_of(message[TAG_BYTES:] if self._tagged else message)
        except (DecodeError, ProtobufError):
            return ("garbage",)

    def _read_handshake(self, message: bytes, *, own: bool) -> str:
        letter, body = message[:1], message[1:]
        if letter == b"H":
            self._read_hello(pb.Hello.FromString(body), own=own)
        elif letter == b"P":
            self._tagged = bool(pb.Proof.FromString(body).mac) and not self._tls
        return HANDSHAKE + LETTERS.get(letter, "garbage")

    def _read_hello(self, hello: pb.Hello, *, own: bool) -> None:
        if own:
            self.here = name_in(hello)
        else:
            self.there = name_in(hello)
        if own == self._dialled:
            self.purpose = hello.purpose
            if hello.expected_name and own:
                self.there = hello.expected_name


def name_in(hello: pb.Hello) -> str:
    """Returns the name that a hello states, without the part that differs between runs."""
    line = LINE.fullmatch(hello.name)
    return hello.name if line is None else line[1]


def kinds_of(payload: bytes) -> tuple[str, ...]:
    """Returns the kinds of the contents of a frame, each once.

    Raises:
        DecodeError: The bytes are not a frame.
    """
    frame = unpack_frame(payload, _ANY_SIZE)
    kinds = dict.fromkeys(envelope.kind for envelope in frame.envelopes)
    found = [*kinds]
    if frame.heartbeat is not None:
        found.append("heartbeat")
    if frame.goodbye is not None:
        found.append("goodbye")
    return tuple(found) or ("receipt",)


# -- a transport over a faulty network -----------------------------------------------------------
#
#     network = FaultyNetwork(FaultPlan(seed=7, drop=0.01))
#     transport = FaultyTransport(GrpcTransport(), network)     # one for each worker
#     network.partition("worker0", "worker1")                   # until heal()
#
#     Exchange ──▶ faulty carrier ──▶ carrier of any transport ──▶ faulty carrier ──▶ Exchange
#                  judges what it sends                            judges what it sends
#
# Each message is judged once, at its sender; so every worker of a job gets a faulty transport.


@final
class FaultyTransport(Transport):
    """Another transport, over a faulty network.

    The network judges the messages that this worker sends. Give every worker of a job such a
    transport, over the same network.

    Args:
        inner: The transport that makes the carriers.
        network: The faulty network.
        name: The name of this worker in rules and cuts. By default each of its carriers has the
            name in its handshake: `worker0`, and `store.0` on the line to the coordinator.

    Example:
        >>> from telegrad.testing import FaultPlan
        >>> from telegrad.transport import InprocNetwork, InprocTransport
        >>> network = FaultyNetwork(FaultPlan())
        >>> transport = FaultyTransport(InprocTransport(InprocNetwork()), network, name="worker0")
        >>> transport.scheme
        'inproc'
    """

    def __init__(self, inner: Transport, network: FaultyNetwork, *, name: str = "") -> None:
        self.scheme, self.schemes = inner.scheme, inner.schemes
        self._inner = inner
        self._network = network
        self._name = name

    async def listen(self, accept: Callable[[Carrier], Awaitable[None]]) -> Listener:
        """Opens a listener of the inner transport, whose carriers become faulty."""

        async def accept_faulty(carrier: Carrier) -> None:
            await accept(_FaultyCarrier(carrier, self._network, self._name, dialled=False))

        return await self._inner.listen(accept_faulty)

    async def dial(self, endpoint: str) -> Carrier:
        """Dials; fails as for an unreachable host while everything is cut."""
        if self._network.is_cut("", ""):
            self._network.count("unreachable")
            raise ConnectionError(f"{endpoint} cannot be reached: the network is cut")
        carrier = await self._inner.dial(endpoint)
        return _FaultyCarrier(carrier, self._network, self._name, dialled=True)

    def __repr__(self) -> str:
        """Shows the network."""
        return f"<FaultyTransport {self.scheme} over {self._network!r}>"


@final
class _FaultyCarrier(WrappedCarrier):
    """Judges the messages of this end, and holds back both directions while the network is cut."""

    def __init__(self, inner: Carrier, network: FaultyNetwork, name: str, *, dialled: bool) -> None:
        super().__init__(inner)
        self._network = network
        self._own = name
        self._dialled = dialled
        self._reader = CarrierReader(dialled=dialled, tls=bool(inner.binding))
        self._name = ""
        self._loop = asyncio.get_running_loop()
        self._looks = asyncio.Event()  # set when the network was healed, or this end is closed
        self._ended = asyncio.Event()
        self._late: list[bytes] = []  # reordered messages, to be sent behind the next one
        self._breaking: asyncio.Task[None] | None = None
        network.opened(self)

    @property
    def here(self) -> str:
        """The name of the worker at this end, as far as it is known."""
        return self._own or self._reader.here

    @property
    def there(self) -> str:
        """The name of the worker at the other end, as far as it is known."""
        return self._network.called(self._reader.there)

    async def send(self, message: bytes) -> None:
        self._check_open()
        kinds = self._reader.sends(message)
        self._name = self._name or self._named()
        passing = Passing(self.here, self.there, self._name, self._reader.sent, kinds)
        await self._wait_for_way(self.here, self.there, handshake=passing.handshake)
        verdict = self._network.judged(passing)
        if verdict is None:
            await self._pass(message)
        else:
            await self._strike(message, verdict)

    async def receive(self) -> bytes:
        self._check_open()
        try:
            message = await self._inner.receive()
        except CarrierClosedError:
            if self._reader.proved:  # an end that is cut off does not notice the break either
                await self._wait_for_way(self.there, self.here, handshake=False)
            raise
        kinds = self._reader.receives(message)
        await self._wait_for_way(self.there, self.here, handshake=is_handshake(kinds))
        return message

    async def close(self) -> None:
        self._end()
        if self._breaking is None:
            await self._inner.close()
        else:
            await self._breaking

    def look_again(self) -> None:
        """Makes waiting messages check again if there is a cut; from any thread."""
        self._call_soon(self._looks.set)

    def kill_soon(self) -> None:
        """Breaks the carrier; from any thread."""
        self._call_soon(self._kill)

    def _named(self) -> str:
        self._network.called(self._reader.here, self._own)
        here, there = self.here or "?", self.there or "?"
        ends = (here, there) if self._dialled else (there, here)
        return self._network.number(">".join(ends), self._reader.purpose, self.here)

    async def _strike(self, message: bytes, verdict: Verdict) -> None:
        fault = verdict.fault
        if fault is Fault.DELAY:
            await self._linger(verdict.seconds)
        if fault is Fault.REORDER:
            self._late.append(message)
        elif fault not in (Fault.DROP, Fault.KILL):
            await self._pass(message)
        if fault is Fault.DUPLICATE:
            await self._inner.send(message)
        if fault in (Fault.KILL, Fault.KILL_AFTER):
            self._break()
            raise CarrierClosedError(f"the carrier {self._name} was broken by {verdict.fault}")

    async def _pass(self, message: bytes) -> None:
        await self._inner.send(message)
        late, self._late = self._late, []
        for each in late:
            await self._inner.send(each)

    async def _linger(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        self._check_open()

    async def _wait_for_way(self, sender: str, receiver: str, *, handshake: bool) -> None:
        """Returns once there is no cut between two ends; breaks a carrier in its handshake."""
        if not self._network.is_cut(sender, receiver):
            return
        if handshake:
            self._network.count("unreachable")
            self._break()
            raise CarrierClosedError(f"the network is cut ({sender!r}, {receiver!r})")
        self._network.count("held")
        while self._network.is_cut(sender, receiver):
            self._check_open()
            self._looks.clear()
            await self._looks.wait()
        self._check_open()

    def _check_open(self) -> None:
        if self._ended.is_set():
            raise CarrierClosedError(f"the carrier to {self.description} is closed")

    def _kill(self) -> None:
        if not self._ended.is_set():
            self._network.count("killed")
            self._break()

    def _break(self) -> None:
        """Ends the carrier without waiting: closing it may take its transport a while."""
        self._end()
        if self._breaking is None:
            self._breaking = self._loop.create_task(self._inner.close())

    def _end(self) -> None:
        self._ended.set()
        self._looks.set()

    def _call_soon(self, function: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and so is the carrier
            self._loop.call_soon_threadsafe(function)


# -- a transport that can be killed: everything breaks at once, without a goodbye ----------------


@final
class KillableTransport(Transport):
    """Another transport, until it is killed.

    Args:
        inner: The transport that makes the carriers.

    Attributes:
        dead: True if the transport was killed.
    """

    def __init__(self, inner: Transport) -> None:
        self.scheme, self.schemes = inner.scheme, inner.schemes
        self._inner = inner
        self.dead = False
        self._open: list[Carrier | Listener] = []

    async def listen(self, accept: Callable[[Carrier], Awaitable[None]]) -> Listener:
        """Opens a listener that a kill closes."""

        async def remember(carrier: Carrier) -> None:
            await self._keep(carrier)
            await accept(carrier)

        listener = await self._inner.listen(remember)
        self._open.append(listener)
        return listener

    async def dial(self, endpoint: str) -> Carrier:
        """Dials; refused once this end is dead."""
        if self.dead:
            raise ConnectionRefusedError(f"{endpoint} cannot be dialled from a killed worker")
        carrier = await self._inner.dial(endpoint)
        await self._keep(carrier)
        return carrier

    async def kill(self) -> None:
        """Breaks all carriers and closes all listeners; nothing is dialled or accepted any more."""
        self.dead = True
        opened, self._open = self._open, []
        for thing in reversed(opened):
            await thing.close()

    async def _keep(self, carrier: Carrier) -> None:
        self._open.append(carrier)
        if self.dead:  # killed while it was being made
            await carrier.close()
