"""What the tests of the transport share: receivers that record, carriers that break."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pytest

from telegrad.errors import WorkerLostError
from telegrad.testing import leaks
from telegrad.transport import (
    Carrier,
    CarrierClosedError,
    ConnectionLimits,
    Credentials,
    Entrance,
    Exchange,
    GrpcTransport,
    Identity,
    InprocNetwork,
    InprocTransport,
    Listener,
    LocalTransport,
    LoopThread,
    Receiver,
    TcpTransport,
    Tls,
    TlsOptions,
    Transport,
    WrappedCarrier,
    load_tls,
    make_authority,
    make_certificate,
    self_signed_tls,
    shared_loop_thread,
)
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope

if TYPE_CHECKING:
    from telegrad.transport.session.carriers import Carriers

T = TypeVar("T")

LOCALHOST = "127.0.0.1"
SECONDS = 20.0  # no wait of these tests takes so long unless something is wrong
FAREWELL = 0.2  # for what a test has left under way; some peers are gone and answer no goodbye
TICK = 0.25  # how often an exchange looks, with a bound of 10 s
SETTLES = 30  # turns of the loop in which whatever is under way in this process arrives
# In the certificate of a floor with mutual TLS.
NAMES = ("alice", "bob", "carol", "dave", "host", "coordinator", "zoe", *"abcd")
TOKEN = b"a token that only the tests use"

# With this mark a test runs over one transport in `make test`, over the others in `make test-long`.
over_one_transport = pytest.mark.parametrize(
    "floor",
    ["inproc", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("local", "grpc"))],
    indirect=True,
)


def first_of(n: int) -> list[Any]:
    """Returns the seeds 0 to n - 1 as parameters of a test; all but 0 are for `make test-long`."""
    return [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, n))]


class Recorder(Receiver):
    """A receiver that keeps what it got and can be waited on."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.envelopes: list[tuple[WorkerInfo, Envelope]] = []
        self.lost: list[tuple[WorkerInfo, WorkerLostError]] = []
        self.react: Callable[[WorkerInfo, Envelope], None] | None = None

    def on_envelope(self, peer: WorkerInfo, envelope: Envelope) -> None:
        with self.changed:
            self.envelopes.append((peer, envelope))
            self.changed.notify_all()
        if self.react is not None:
            self.react(peer, envelope)

    def on_lost(self, peer: WorkerInfo, error: WorkerLostError) -> None:
        with self.changed:
            self.lost.append((peer, error))
            self.changed.notify_all()

    def calls(self) -> list[int]:
        with self.changed:
            return [envelope.call for _, envelope in self.envelopes]

    def wait_envelopes(self, count: int) -> list[Envelope]:
        with self.changed:
            found = self.changed.wait_for(lambda: len(self.envelopes) >= count, SECONDS)
            assert found, f"{len(self.envelopes)} of {count} envelopes came; lost: {self.lost}"
            return [envelope for _, envelope in self.envelopes]

    def wait_call(self, call: int) -> Envelope:
        """Waits until the envelope of a call has come."""

        def come() -> list[Envelope]:
            return [each for _, each in self.envelopes if each.call == call]

        with self.changed:
            assert self.changed.wait_for(come, SECONDS), f"{call} did not come; lost: {self.lost}"
            return come()[0]

    def wait_lost(self) -> WorkerLostError:
        with self.changed:
            assert self.changed.wait_for(lambda: bool(self.lost), SECONDS), "nobody was lost"
            return self.lost[0][1]


class ManualClock:
    """A clock that the test turns; read from any thread."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class WrappedTransport(Transport):
    """A transport that passes all to another one; a subclass changes its carriers."""

    def __init__(self, inner: Transport) -> None:
        self.scheme, self.schemes = inner.scheme, inner.schemes
        self.inner = inner

    async def listen(self, accept: Callable[[Carrier], Awaitable[None]]) -> Listener:
        return await self.inner.listen(lambda carrier: accept(self.accepted(carrier)))

    async def dial(self, endpoint: str) -> Carrier:
        return self.dialled(await self.inner.dial(endpoint))

    def accepted(self, carrier: Carrier) -> Carrier:
        return carrier

    def dialled(self, carrier: Carrier) -> Carrier:
        return carrier


class Slow(WrappedTransport):
    """Dials only when it is let, and writes nothing once it is stuck."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self.stuck = False
        self.writing = threading.Event()
        self.dialling = threading.Event()
        self.go = asyncio.Event()
        self.closed = threading.Event()

    async def get_stuck(self) -> None:
        """In one step of the loop: a beat may be due in between."""
        self.go.clear()
        self.stuck = True

    async def dial(self, endpoint: str) -> Carrier:
        self.dialling.set()
        await self.go.wait()
        return _SlowCarrier(await self.inner.dial(endpoint), self)


class _SlowCarrier(WrappedCarrier):
    def __init__(self, inner: Carrier, slow: Slow) -> None:
        super().__init__(inner)
        self._slow = slow

    async def send(self, message: bytes) -> None:
        if self._slow.stuck:
            self._slow.writing.set()
            await self._slow.go.wait()
            raise CarrierClosedError("the other end is gone")
        await self._inner.send(message)

    async def close(self) -> None:
        await self._inner.close()
        self._slow.closed.set()


class SlowReader(WrappedTransport):
    """What a worker listens with: it brings all at once, or one message for each permit."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self.is_slow = False
        self.permits = asyncio.Semaphore(0)

    def accepted(self, carrier: Carrier) -> Carrier:
        return _SlowlyRead(carrier, self)


class _SlowlyRead(WrappedCarrier):
    def __init__(self, inner: Carrier, slow: SlowReader) -> None:
        super().__init__(inner)
        self._slow = slow

    async def receive(self) -> bytes:
        message = await self._inner.receive()
        if self._slow.is_slow:
            await self._slow.permits.acquire()
        return message


class Worker:
    """An exchange with its receiver and endpoints."""

    def __init__(self, exchange: Exchange, recorder: Recorder) -> None:
        self.exchange = exchange
        self.recorder = recorder
        self.endpoints: tuple[str, ...] = ()
        self.sockets: list[TcpTransport] = []  # what its streams move to, if anything

    @property
    def info(self) -> WorkerInfo:
        return self.exchange.info

    def post(self, peer: Worker, call: int, **fields: Any) -> None:
        self.exchange.post(peer.info, Envelope("test.message", call, **fields))

    def send(self, peer: Worker, call: int, **fields: Any) -> Envelope:
        """Posts an envelope and waits until it has come; returns it as it came."""
        self.post(peer, call, **fields)
        return peer.recorder.wait_call(call)

    @property
    def connections(self) -> dict[tuple[str, int], Carriers]:
        """Its connections by name and incarnation, ended ones included; an exchange shows none."""
        return self.exchange._peers.known

    def connection(self, peer: WorkerInfo) -> Carriers:
        """Returns what keeps up its connection to a peer."""
        return self.connections[peer.name, peer.incarnation]

    def knows(self, *peers: Worker) -> Worker:
        for peer in peers:
            self.exchange.connect(peer.info, peer.endpoints)
        return self


class Authority:
    """A certificate authority in a directory of the test's."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self._directory = directory
        self._pair = make_authority()
        self._written = 0

    def options(self, *names: str, days: float = 1.0) -> TlsOptions:
        """Writes a certificate of this authority for these names."""
        pair = make_certificate(self._pair, names, days=days)
        self._written += 1
        contents = {
            "ca": self._pair.certificate,
            "certificate": pair.certificate,
            "key": pair.key,
        }
        paths = {field: self._directory / f"{self._written}.{field}" for field in contents}
        for field, content in contents.items():
            paths[field].touch(0o600)
            paths[field].write_bytes(content)
        return TlsOptions(**paths)

    def tls(self, *names: str) -> Tls:
        """Returns what a worker of these names shows and demands."""
        return load_tls(self.options(*names), names[0])


class Floor:
    """Makes workers over one transport; closes all of them at the end.

    Args:
        kind: "inproc", "local", "grpc", "self-signed" or "mutual", the last two over gRPC with TLS;
            "tcp", "self-signed tcp" or "mutual tcp", whose streams move from there to TCP sockets.
        authority: Of the one certificate that the workers of "mutual" share.
    """

    def __init__(self, kind: str, authority: Authority | None = None) -> None:
        self.kind = kind
        self._authority = authority
        self._network = InprocNetwork()
        self._local = LocalTransport() if kind == "local" else None
        self._workers: list[Worker] = []

    def transport(self) -> Transport:
        if self.kind == "inproc":
            return InprocTransport(self._network)
        return self.grpc() if self._local is None else self._local

    def grpc(self, **options: Any) -> GrpcTransport:
        """Returns one that encrypts as this floor does."""
        return GrpcTransport(tls=self._tls(), **options)

    def _tls(self) -> Tls | None:
        if self.kind.startswith("mutual"):
            assert self._authority is not None
            return self._authority.tls(*NAMES)
        return self_signed_tls() if self.kind.startswith("self-signed") else None

    def sockets(self) -> list[TcpTransport]:
        """Returns the transport past gRPC for one worker, where this floor has it."""
        if not self.kind.endswith("tcp"):
            return []
        tls = self._tls()
        return [TcpTransport((0,), lambda: ("127.0.0.1", tls), tls=tls)]

    def worker(
        self,
        name: str,
        *,
        incarnation: int = 1,
        job: str = "job",
        token: bytes | None = TOKEN,
        transport: Transport | None = None,
        listen: bool = True,
        sockets: bool | TcpTransport = True,
        **options: Any,
    ) -> Worker:
        recorder = Recorder()
        own_sockets = [sockets] if isinstance(sockets, TcpTransport) else []
        if sockets is True:
            own_sockets = self.sockets()
        info = WorkerInfo(name, len(self._workers), incarnation)
        credentials = Credentials(identity=Identity(job, info), token=token)
        if (seconds := options.pop("prove_within", None)) is not None:
            limits = options.get("limits", ConnectionLimits())
            options["limits"] = replace(limits, handshake_seconds=seconds)
        entrance = {
            each: options.pop(each)
            for each in ("listens", "guests", "on_refused")
            if each in options
        }
        exchange = Exchange(
            credentials,
            entrance=Entrance(**entrance),
            transports=[
                self.transport() if transport is None else transport,
                *own_sockets,
            ],
            receiver=recorder,
            **options,
        )
        worker = Worker(exchange, recorder)
        worker.sockets = own_sockets
        worker.endpoints = exchange.start(listen=listen)
        self._workers.append(worker)
        return worker

    def pair(self, **options: Any) -> tuple[Worker, Worker]:
        first, second = self.worker("alice", **options), self.worker("bob", **options)
        first.knows(second)
        second.knows(first)
        return first, second

    def kill(self, worker: Worker) -> None:
        """Ends a worker without a goodbye, as when its process dies."""
        exchange = worker.exchange

        async def abort() -> None:
            await exchange._close_listeners()
            for connection in list(worker.connections.values()):
                connection.end()

        shared_loop_thread().run(abort(), SECONDS)
        exchange.close(0.0)

    def close(self) -> None:
        for worker in self._workers:
            worker.exchange.close(FAREWELL)


def pattern(size: int, seed: int = 0) -> bytes:
    """Returns bytes without order, the same ones for each seed."""
    return np.random.default_rng(seed).bytes(size)


def has_moved(worker: Worker, peer: Worker) -> bool:
    """Tells whether the stream of a worker to a peer has moved to a socket."""
    stream = worker.connection(peer.info).stream
    return stream is not None and stream.carrier.takes_over


def wait_until_moved(alice: Worker, bob: Worker) -> None:
    wait_until("moved", lambda: has_moved(alice, bob) and has_moved(bob, alice))


@contextlib.contextmanager
def floor_of(kind: str, authority: Authority | None = None) -> Iterator[Floor]:
    floor = Floor(kind, authority)
    try:
        yield floor
    finally:
        floor.close()


def port_of(worker: Worker) -> int:
    """Returns the direct port of a worker."""
    told, *_ = worker.sockets[0].told
    return int(told.partition("=")[2])


def wait_until(what: str, condition: Callable[[], bool]) -> None:
    """Waits for what others bring about."""
    leaks.wait_until_gone(what, lambda: [] if condition() else [what], SECONDS)


def run_on(loop: LoopThread, function: Callable[[], T]) -> T:
    """Calls a function on a loop."""

    async def call() -> T:
        return function()

    return loop.run(call(), SECONDS)


def meanwhile(function: Callable[[], T]) -> Future[T]:
    """Runs a function in a thread of its own; `result` raises what it raised."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(function())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return result


def at_once(*work: Callable[[], object], within: float = SECONDS) -> None:
    """Runs functions that begin together, in threads, and waits until all have ended."""
    start = threading.Barrier(len(work))

    def run(each: Callable[[], object]) -> None:
        start.wait(SECONDS)
        each()

    with ThreadPoolExecutor(len(work)) as pool:
        for running in [pool.submit(run, each) for each in work]:
            running.result(within)


def hears_beats(worker: Worker, peer: Worker, clock: ManualClock) -> bool:
    """Returns whether a worker has heard a beat that its peer sent when it was as late as now.

    Before that their clock must not go on: the peers would fall silent for each other.
    """
    pulse = worker.connection(peer.info).connection.pulse
    return bool(pulse.silence_words(clock())) and pulse.silence(clock()) <= 0.0


def let_pass(clock: ManualClock, seconds: float, *workers: Worker) -> None:
    """Has so much time pass for these workers, tick by tick."""

    async def on_loop() -> None:
        await settled()
        for _ in range(round(seconds / TICK)):
            clock.now += TICK
            for worker in workers:
                ticked(worker, clock.now)
            await settled()

    shared_loop_thread().run(on_loop(), SECONDS)


def beat(clock: ManualClock, seconds: float, *pair: Worker, until: Callable[[], bool]) -> None:
    """Has so much time pass at once, and the beats that are due then arrive at both of a pair.

    Args:
        clock: Of both.
        seconds: How much.
        *pair: Two workers.
        until: Whether no beats are waited for any more.
    """
    one, other = pair

    async def on_loop() -> None:
        clock.now += seconds
        for worker in pair:
            ticked(worker, clock.now)

    shared_loop_thread().run(on_loop(), SECONDS)
    wait_until(
        "beats",
        lambda: until() or (hears_beats(one, other, clock) and hears_beats(other, one, clock)),
    )


def ticked(worker: Worker, now: float) -> None:
    """Has all connections of a worker look at the time; on the loop."""
    for connection in list(worker.connections.values()):
        connection.tick(now)


async def settled() -> None:
    for _ in range(SETTLES):
        await asyncio.sleep(0)
