"""All connections of one worker: accept, dial, redial, lose, leave, close."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, final

from telegrad.critical import critical
from telegrad.errors import (
    AuthenticationError,
    RendezvousError,
    UnknownWorkerError,
    WorkerLostError,
)
from telegrad.transport.base import CarrierClosedError, Listener, Receiver, Transport
from telegrad.transport.channels.base import Means
from telegrad.transport.channels.shared_memory import SlabPool
from telegrad.transport.io.socket_reader import SocketReader
from telegrad.transport.limits import ConnectionLimits
from telegrad.transport.log import get_logger
from telegrad.transport.loop import shared_loop_thread
from telegrad.transport.security.audit import Audit
from telegrad.transport.security.handshake import Reason, RefusedError
from telegrad.transport.session.accept import OPEN, Door, Entrance
from telegrad.transport.session.ask import Answer, ask
from telegrad.transport.session.carriers import Carriers
from telegrad.transport.session.dial import Reach, dial
from telegrad.transport.session.loopback import Loopback
from telegrad.transport.session.peers import Peers
from telegrad.transport.session.stream import without_carrier
from telegrad.transport.session.terms import Credentials, ExchangeStatistics, Terms
from telegrad.transport.session.ticker import Ticker
from telegrad.transport.tasks import Tasks
from telegrad.types import WorkerInfo
from telegrad.wire import NO_MEMORY, Envelope, Land, Memory

logger = get_logger(__name__)

LOST_AFTER = 10.0  # seconds of silence; a stop-the-world pause of Python is far shorter
DEFAULT_LIMITS: Final = ConnectionLimits()
CROSSED_SECONDS = 0.05  # between checks if the dial of a peer that dials, too, has come through
# For two messages: a goodbye that overtakes what a peer has not taken in time, and the answer. A
# peer that reads at all takes far less, and a peer that does not must not delay the close.
LAST_WORD_SECONDS = 0.5


def _by_scheme(transports: Sequence[Transport]) -> dict[str, Transport]:
    """Returns for each scheme the first transport that dials it."""
    found: dict[str, Transport] = {}
    for transport in transports:
        for scheme in transport.schemes:
            found.setdefault(scheme, transport)
    return found


async def _all_ended(peers: Sequence[Carriers], timeout: float) -> None:
    """Waits until all connections have ended, so many seconds at most."""
    ending = [asyncio.ensure_future(c.ended.wait()) for c in peers if not c.ended.is_set()]
    if ending:
        _, late = await asyncio.wait(ending, timeout=timeout)
        for task in late:
            task.cancel()


async def _say_goodbye(peers: Sequence[Carriers], timeout: float, reason: str) -> list[Carriers]:
    """Says goodbye behind all that was posted; returns the peers that have not taken it in time."""
    for carriers in peers:
        carriers.leave(reason)
    await _all_ended(peers, timeout)
    return _late(peers)


def _late(peers: Sequence[Carriers]) -> list[Carriers]:
    """Returns the connected peers that have not answered the goodbye."""
    return [each for each in peers if each.stream is not None and not each.ended.is_set()]


@final
class Exchange:
    """The sessions of one worker with all others.

    Between two incarnations every envelope is handed over exactly once, in any order, or the peer
    is lost; `on_envelope` and `on_lost` are called on the loop thread.

    Args:
        credentials: The proof of this worker's identity, and the proof that it asks of others.
        transports: The transports in order of preference; of those with one scheme the first
            listens.
        receiver: The layer above.
        entrance: The rules by which it admits others.
        lost_after: Seconds of silence after which a peer is lost.
        clock: The clock of liveness and deadlines, in seconds.
        limits: The limits on what others may use.
        reader: Reads the sockets that bypass gRPC, on the shared loop; by default one that never
            spins.
    """

    def __init__(
        self,
        credentials: Credentials,
        *,
        transports: Sequence[Transport],
        receiver: Receiver,
        entrance: Entrance = OPEN,
        lost_after: float = LOST_AFTER,
        clock: Callable[[], float] = time.monotonic,
        limits: ConnectionLimits = DEFAULT_LIMITS,
        reader: SocketReader | None = None,
    ) -> None:
        self.info = credentials.identity.info
        self._own_key = self.info.name, self.info.incarnation
        self._entrance = entrance
        loop = shared_loop_thread()
        self._tasks = Tasks()
        reader = SocketReader(loop, 0.0) if reader is None else reader
        self._terms = Terms(
            credentials=credentials,
            transports=_by_scheme(transports),
            receiver=receiver,
            lost_after=lost_after,
            clock=clock,
            loop=loop,
            spawn=self._tasks.spawn,
            audit=Audit(self.info.name),
            limits=limits,
            means=Means(loop=loop, spawn=self._tasks.spawn, clock=clock),
            slabs=SlabPool(clock),
            reader=reader,
        )
        self._peers = Peers(self._terms, partial(dial, terms=self._terms))
        self._ticker = Ticker(self._terms, self._peers)
        self._door = Door(self._terms, entrance, self._peers)
        self._loopback = Loopback(self.info, loop, receiver)
        self._state_lock = threading.Lock()  # guards the next two
        self._started = False
        self._closed = False
        self._listeners: list[Listener] = []  # this and the following are for the loop alone

    # From any thread.

    def start(self, *, listen: bool = True) -> tuple[str, ...]:
        """Opens the listeners, where this worker listens; blocks until they are open.

        Args:
            listen: False for a client that only dials, or that will `listen` later.

        Returns:
            The endpoints under which peers reach this worker, in order of preference.

        Raises:
            OSError: An address or port cannot be had.
        """
        with critical.section, self._state_lock:
            if self._started:
                raise RuntimeError("an exchange is started once")
            self._started = True
        self._terms.loop.acquire()
        try:
            return self._terms.loop.run(self._start(listen and self._entrance.listens))
        except BaseException:
            with critical.section, self._state_lock:
                self._closed = True
            self._peers.close()
            self._terms.loop.release()
            raise

    def listen(self) -> tuple[str, ...]:
        """Opens the listeners after a `start` without them; returns the endpoints.

        Raises:
            OSError: An address or port cannot be had.
        """
        return self._terms.loop.run(self._listen())

    def host_of(self, worker: WorkerInfo) -> str:
        """Returns the id of the host on which a worker takes local connections; "" if on none.

        All workers of a job get the same answer, as all know the same endpoints.
        """
        if worker == self.info:
            endpoints = [each.endpoint for each in list(self._listeners)]
        else:
            carriers = self._peers.find(worker, False)
            endpoints = [] if carriers is None else [*carriers.endpoints]
        local = [each for each in endpoints if each and each.startswith("local://")]
        return local[0].split("/")[2] if local else ""

    def connect(self, peer: WorkerInfo, endpoints: Sequence[str]) -> None:
        """Takes the endpoints where a peer listens; it is dialled when something is posted.

        A peer without endpoints only dials. Two workers that only dial are cut off from each other:
        `post` raises UnreachableWorkerError.
        """
        carriers = self._peers.find(peer, True)
        if carriers is None:
            return
        carriers.learn(endpoints)
        if self._entrance.listens:
            return
        if endpoints:
            self._terms.loop.call_soon(carriers.reach)
        else:
            carriers.connection.cut(
                f"it does not listen, nor does this worker, {self.info.name!r} (port=None), so "
                "that neither can dial the other; have one of them listen, or call through a "
                "worker that does"
            )

    def post(self, peer: WorkerInfo, envelope: Envelope, *, rides: bool = False) -> None:
        """Sends an envelope to a peer, or to this worker itself; never blocks.

        Args:
            peer: The receiver.
            envelope: The envelope. Its buffers must not change until it was handed over; an
                envelope to oneself is copied.
            rides: True if it may wait for the next envelope to that peer, or for `flush`, so that
                both leave in one write. On a connection that is idle it may wait for long.

        Raises:
            WorkerLostError: The peer is lost; the exception is a new one each time.
            UnreachableWorkerError: The peer lives, and neither side can dial the other.
            UnknownWorkerError: The peer was never named to `connect` and has no session.
        """
        key = peer.name, peer.incarnation
        if key == self._own_key:
            if self._closed:
                raise WorkerLostError("this worker has shut down", worker=peer.name)
            self._loopback.post(envelope)
            return
        carriers = self._peers.known.get(key)
        if carriers is None:
            raise self._terms.receiver.loss_of(peer) or UnknownWorkerError(
                f"worker {peer.name!r} (incarnation {peer.incarnation}) was never heard of here"
            )
        carriers.connection.post(envelope, rides=rides)

    def flush(self, peer: WorkerInfo) -> None:
        """Writes what was posted to a peer and still waits for a later write."""
        carriers = self._peers.find(peer, False)
        if carriers is not None:
            carriers.connection.flush()

    def introduce(self, endpoint: str, *, timeout: float, name: str = "") -> WorkerInfo:
        """Dials an endpoint whose worker is not known yet; blocks until a session is open.

        Args:
            endpoint: The address of a listener.
            timeout: Seconds that it may take.
            name: The name of that worker; "" for any. Under mutual TLS its certificate proves the
                name.

        Returns:
            The worker that answered; `post` reaches it from now on.

        Raises:
            ConnectionRefusedError: Nobody listens there.
            ConnectionError: The endpoint cannot be reached now; may be tried again.
            AuthenticationError: The worker's token is another one.
            RendezvousError: The worker belongs to another job, has another name, speaks another
                version, or refuses.
        """
        expected = WorkerInfo(name, 0, 0) if name else None
        try:
            return self._terms.loop.run(self._introduce(endpoint, expected), timeout)
        except TimeoutError as error:
            raise ConnectionError(f"{endpoint} did not answer (timeout: {timeout:g} s)") from error
        except RefusedError as error:
            words = f"{endpoint}: {error.words.removeprefix(endpoint).lstrip()}"
            if error.reason is Reason.AUTHENTICATION:
                raise AuthenticationError(words) from error
            remedy = "; check the address" if error.reason is Reason.NAME else ""
            raise RendezvousError(words + remedy) from error

    def leave(self, peer: WorkerInfo, reason: str = "it left") -> None:
        """Says goodbye to one peer, behind what was posted to it; does not block."""
        carriers = self._peers.find(peer, False)
        if carriers is not None:
            self._terms.loop.call_soon(carriers.leave, reason)

    def spare(self, peer: WorkerInfo, seconds: float) -> None:
        """Gives a peer up only after so many seconds of silence, if that is later than for others.

        For a peer that announced it: it may be silent for longer than most.
        """
        carriers = self._peers.find(peer, True)
        if carriers is not None:
            self._terms.loop.call_soon(carriers.spare, seconds)

    def fence(
        self, peer: WorkerInfo, reason: str, *, left: bool = False, fenced: bool = False
    ) -> None:
        """Declares a peer lost, as `Connection.lose` does: `post` refuses at once."""
        carriers = self._peers.find(peer, True)
        if carriers is not None:
            carriers.connection.lose(reason, left=left, fenced=fenced)

    def close(
        self, timeout: float, reason: str = "shutdown", *, leaves_at_once: bool = False
    ) -> None:
        """Says goodbye to every peer, waits until what was posted has arrived, closes.

        Idempotent; blocks for at most about `timeout` seconds, and gives up what has not arrived by
        then. A peer that has not taken everything is told so, if it takes that message in half a
        second; so does the log.

        Args:
            timeout: Seconds.
            reason: The reason, in words, for the peers.
            leaves_at_once: True if nobody expects that all arrives, so that the log warns of none.
        """
        with critical.section, self._state_lock:
            running = self._started and not self._closed
            self._closed = True
        # Nobody is met after this: these are all that have to say goodbye.
        peers = self._peers.close()
        if not running:
            return
        loop, deadline = self._terms.loop, time.monotonic() + timeout
        if (guests := self._entrance.guests) is not None:
            guests.close(f"{self.info.name!r} has shut down")
        try:
            late = loop.run(_say_goodbye(peers, timeout, reason))
            # In this thread: a handler of the log may block, and must not block the loop.
            level = logging.INFO if leaves_at_once else logging.WARNING
            words = "%r ends before %r has taken all that it sent; that took longer than %.3g s"
            for each in late:
                logger.log(level, words, self.info.name, each.peer.name, timeout)
        finally:  # an interrupt ends the wait, and the rest follows
            try:
                told = (
                    f"it left before it had sent everything; that took longer than {timeout:.3g} s"
                )
                loop.run(self._close(peers, deadline, f"{told} ({reason})"))
            finally:
                self._terms.means.threads.close()
                self._terms.slabs.close()
                self._terms.audit.close()
                loop.release()

    @property
    def audit(self) -> Audit:
        """The log of refused peers, for the layers above as well."""
        return self._terms.audit

    def statistics(self) -> ExchangeStatistics:
        """Returns the totals so far."""
        counters = self._terms.counters
        return self._peers.moved() + ExchangeStatistics(
            bytes_sent=counters.bulk_bytes_sent,
            bytes_received=counters.bulk_bytes_received,
            connections=counters.connections,
            lanes=counters.lanes,
            chunks_sent=counters.chunks_sent,
            chunks_received=counters.chunks_received,
            bulk_bytes_sent=counters.bulk_bytes_sent,
            bulk_bytes_received=counters.bulk_bytes_received,
        )

    def awaited(self, peer: WorkerInfo) -> Mapping[int, int]:
        """Returns the requests that come from a peer now: the number of pieces to come, by call."""
        carriers = self._peers.find(peer, False)
        return {} if carriers is None else carriers.connection.statistics().awaited

    def memory(self, peer: WorkerInfo) -> Memory:
        """Returns the memory that a peer shares with this worker, for what is posted to it next."""
        carriers = self._peers.find(peer, False)
        stream = None if carriers is None else carriers.connection.stream
        return NO_MEMORY if stream is None else stream.memory

    def unconnected(self, peer: WorkerInfo) -> str:
        """Returns the reason, in words, why no connection to a peer is up; empty if one is up."""
        carriers = self._peers.find(peer, False)
        if carriers is None or carriers.stream is not None:
            return ""
        ever, failure = carriers.came_up > 0, carriers.last_failure
        why = without_carrier(carriers.endpoints, failure, ever=ever, kept_out=carriers.kept_out)
        return f"no connection to {peer.name!r} is up{why}"

    @property
    def reader(self) -> SocketReader:
        """The reader of the sockets that bypass gRPC."""
        return self._terms.reader

    @property
    def land(self) -> Land:
        """Moves arrays that came to their device; as `wire.land`, for GPUs that peers share."""
        return self._terms.slabs.devices.land

    # On the loop.

    async def _start(self, listen: bool) -> tuple[str, ...]:
        endpoints = await self._listen() if listen else ()
        self._ticker.tick()
        return endpoints

    async def _listen(self) -> tuple[str, ...]:
        known = self._terms.transports
        try:
            for transport in dict.fromkeys(known.values()):
                if known[transport.scheme] is transport:  # else the first of this scheme listens
                    listener = await transport.listen_as(self.info, self._door.take)
                    self._listeners.append(listener)
        except BaseException:
            await self._close_listeners()
            raise
        return tuple(each.endpoint for each in self._listeners if each.endpoint)

    async def _introduce(self, endpoint: str, expected: WorkerInfo | None) -> WorkerInfo:
        broken = False
        while True:
            answer = await ask(self._terms, endpoint, expected)
            carriers = self._peers.find(answer.peer, True)
            if carriers is None:
                self._tasks.spawn(answer.carrier.close())
                raise ConnectionError("this exchange is closed")
            try:
                await self._open(carriers, answer)
            except (CarrierClosedError, RefusedError) as error:
                # The peer's own dial may have ended this stream, and come up a moment later.
                first_break = isinstance(error, CarrierClosedError) and not broken
                broken |= first_break
                crossed = isinstance(error, RefusedError) and error.reason is Reason.DUPLICATE
                if carriers.stream is None and not first_break and not crossed:
                    raise
            if carriers.stream is not None:
                return carriers.peer
            await asyncio.sleep(CROSSED_SECONDS)  # the peer's own dial is under way

    async def _open(self, carriers: Carriers, answer: Answer) -> None:
        if (loss := carriers.connection.loss) is not None or carriers.stream is not None:
            self._tasks.spawn(answer.carrier.close())
            if loss is not None:
                raise loss
            return
        if not carriers.endpoints:
            carriers.learn((answer.endpoint,))
        await Reach(carriers, self._terms).prove(answer)
        dial(carriers, self._terms)  # which moves the stream

    async def _close(self, peers: list[Carriers], deadline: float, last_word: str) -> None:
        late = _late(peers)
        for carriers in late:
            # Without a goodbye this would look like the death of this process to the peer.
            carriers.leave(last_word, now=True)
        await _all_ended(late, LAST_WORD_SECONDS)
        for carriers in peers:
            carriers.end()
        self._ticker.cancel()
        self._terms.reader.close()
        await self._close_listeners()
        await self._tasks.end(max(0.5, deadline - time.monotonic()))

    async def _close_listeners(self) -> None:
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            await listener.close()
