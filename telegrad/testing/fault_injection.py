"""A transport that does wrong what a plan says: it drops, delays, repeats, reorders, breaks, cuts.

    network = FaultyNetwork(FaultPlan(seed=7, drop=0.01))
    transport = FaultyTransport(GrpcTransport(), network)     # one for each worker
    network.partition("worker0", "worker1")                   # ... and heal() it

    Exchange ──▶ faulty carrier ──▶ carrier of any transport ──▶ faulty carrier ──▶ Exchange
                 judges what it sends                            judges what it sends

Each message is judged once, where it is sent; so every worker of a job gets a faulty transport.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import final

from telegrad.testing.carrier_reader import CarrierReader
from telegrad.testing.fault_plan import Fault, Passing, Verdict, is_handshake
from telegrad.testing.faulty_network import FaultyNetwork
from telegrad.transport import Carrier, CarrierClosedError, Listener, Transport, WrappedCarrier

__all__ = ["FaultyTransport"]


@final
class FaultyTransport(Transport):
    """Another transport over a faulty network.

    What this worker sends is judged; give every worker of a job one, over the same network.

    Args:
        inner: What makes the carriers.
        network: What strikes them.
        name: What this worker is called in rules and cuts. By default each of its carriers is
            called what it says in its handshake: `worker0`, and the one to the coordinator
            `store.0`.
    """

    def __init__(self, inner: Transport, network: FaultyNetwork, *, name: str = "") -> None:
        self._inner = inner
        self._network = network
        self._name = name

    @property
    def scheme(self) -> str:
        """That of the inner transport."""
        return self._inner.scheme

    @property
    def schemes(self) -> frozenset[str]:
        """Those of the inner transport."""
        return self._inner.schemes

    async def listen(self, accept: Callable[[Carrier], Awaitable[None]]) -> Listener:
        """Opens a door of the inner transport; what comes in is faulty."""

        async def accept_faulty(carrier: Carrier) -> None:
            await accept(_FaultyCarrier(carrier, self._network, self._name, dialled=False))

        return await self._inner.listen(accept_faulty)

    async def dial(self, endpoint: str) -> Carrier:
        """Dials; fails, as an unreachable host does, while everything is cut."""
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
    """Judges what this end sends, and holds back both directions while the network is cut."""

    def __init__(self, inner: Carrier, network: FaultyNetwork, name: str, *, dialled: bool) -> None:
        super().__init__(inner)
        self._network = network
        self._own = name
        self._dialled = dialled
        self._reader = CarrierReader(dialled=dialled, tls=bool(inner.binding))
        self._name = ""
        self._loop = asyncio.get_running_loop()
        self._looks = asyncio.Event()  # the network was healed, or this end is closed
        self._ended = asyncio.Event()
        self._late: list[bytes] = []  # messages that go behind the next one
        self._breaking: asyncio.Task[None] | None = None
        network.opened(self)

    @property
    def here(self) -> str:
        """Name of the worker at this end, as far as is known."""
        return self._own or self._reader.here

    @property
    def there(self) -> str:
        """Name of the worker at the other end, as far as is known."""
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
            if self._reader.proved:  # who is cut off does not hear of the end either
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
        """Has what waits see whether the network is whole; from any thread."""
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
        """Returns when the network from one end to the other is whole; breaks a handshake."""
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
        """Ends the carrier without a wait: closing it may take its transport a while."""
        self._end()
        if self._breaking is None:
            self._breaking = self._loop.create_task(self._inner.close())

    def _end(self) -> None:
        self._ended.set()
        self._looks.set()

    def _call_soon(self, function: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and so is the carrier
            self._loop.call_soon_threadsafe(function)
