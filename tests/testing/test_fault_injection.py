"""What a faulty carrier does to messages, each fault alone, over each transport."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from telegrad import pb
from telegrad.testing import Fault, FaultPlan, FaultRule, FaultStatistics, FaultyNetwork
from telegrad.testing.faults import FaultyTransport
from telegrad.transport import (
    Carrier,
    CarrierClosedError,
    GrpcTransport,
    InprocNetwork,
    InprocTransport,
    Transport,
)
from telegrad.wire import Envelope, Frame, pack_frame
from tests.loops import on_loop
from tests.repeated import TRANSPORTS

T = TypeVar("T")
Scene = Callable[["Pair"], Awaitable[None]]
TAG = b"t" * 16
SECONDS = 10.0


def hello(name: str, *, expected: str = "", purpose: str = "control") -> bytes:
    said = pb.Hello(name=name, purpose=purpose, expected_name=expected)
    return b"H" + said.SerializeToString()


def frame(*kinds: str) -> bytes:
    return TAG + pack_frame(Frame([Envelope(kind) for kind in kinds]))


class Pair:
    """Two ends of a carrier over a faulty network, with the handshake behind them."""

    def __init__(self, network: FaultyNetwork, dialler: Carrier, listener: Carrier) -> None:
        self.network = network
        self.dialler = dialler
        self.listener = listener

    async def shake_hands(self, *, purpose: str = "control") -> None:
        await self.dialler.send(hello("a", expected="b", purpose=purpose))
        await self.listener.receive()
        await self.listener.send(hello("b"))
        await self.dialler.receive()
        await self.dialler.send(b"P" + pb.Proof(mac=b"m").SerializeToString())
        await self.listener.receive()
        await self.listener.send(b"W" + pb.Welcome(mac=b"m").SerializeToString())
        await self.dialler.receive()

    async def send(self, *messages: bytes) -> None:
        for message in messages:
            await self.dialler.send(message)

    async def close(self) -> None:
        await asyncio.gather(self.dialler.close(), self.listener.close())

    async def receive(self, count: int) -> list[bytes]:
        return [await self.listener.receive() for _ in range(count)]


@pytest.fixture(params=TRANSPORTS)
def play(request: pytest.FixtureRequest) -> Callable[..., FaultyNetwork]:
    """Plays a scene on the loop thread between two ends, over each transport."""

    def run(scene: Scene, *rules: FaultRule, shake: bool = True, **plan: Any) -> FaultyNetwork:
        network = FaultyNetwork(FaultPlan(rules=rules, **plan))
        inproc = InprocNetwork()

        def transport() -> Transport:
            inner = InprocTransport(inproc) if request.param == "inproc" else GrpcTransport()
            return FaultyTransport(inner, network)

        async def play() -> None:
            async with asyncio.timeout(SECONDS), opened(network, transport) as pair:
                if shake:
                    await pair.shake_hands()
                await scene(pair)

        on_loop(play)
        return network

    return run


@asynccontextmanager
async def opened(network: FaultyNetwork, transport: Callable[[], Transport]) -> AsyncIterator[Pair]:
    accepted: asyncio.Queue[Carrier] = asyncio.Queue()
    listener = await transport().listen(accepted.put)
    dialler = await transport().dial(listener.endpoint)
    pair = Pair(network, dialler, await accepted.get())
    try:
        yield pair
    finally:
        await pair.close()
        await listener.close()


Play = Callable[..., FaultyNetwork]
ONE, TWO, THREE = frame("rpc.call"), frame("rpc.call", "rpc.fetch"), frame("store.set")


def test_nothing_happens_without_a_plan(play: Play) -> None:
    async def scene(pair: Pair) -> None:
        await pair.send(ONE, TWO, THREE)
        assert await pair.receive(3) == [ONE, TWO, THREE]
        assert pair.dialler.description.partition(":")[0] in ("inproc", "grpc")

    network = play(scene)
    assert network.statistics() == FaultStatistics(messages=7, carriers=2)
    assert network.injected() == []


def test_a_dropped_message_never_arrives(play: Play) -> None:
    async def scene(pair: Pair) -> None:
        await pair.send(ONE, TWO, THREE)
        assert await pair.receive(2) == [ONE, THREE]

    network = play(scene, FaultRule(Fault.DROP, "rpc.fetch"))
    (injected,) = network.injected()
    assert (injected.passing.sender, injected.passing.receiver) == ("a", "b")
    assert injected.passing.carrier == "a>b control 1, from a"
    assert injected.passing.number == 4
    assert injected.passing.kinds == ("rpc.call", "rpc.fetch")
    assert network.statistics().dropped == network.statistics().faults == 1


@pytest.mark.parametrize(
    ("rule", "arrive", "counted"),
    [
        (FaultRule(Fault.DUPLICATE), [ONE, ONE, TWO, THREE], "duplicated: 1"),
        # Behind the next one.
        (FaultRule(Fault.REORDER, "rpc.*", times=2), [THREE, ONE, TWO], "reordered: 2"),
    ],
    ids=["duplicate", "reorder"],
)
def test_messages_arrive_twice_or_late(
    play: Play, rule: FaultRule, arrive: list[bytes], counted: str
) -> None:
    async def scene(pair: Pair) -> None:
        await pair.send(ONE, TWO, THREE)
        assert await pair.receive(len(arrive)) == arrive

    assert counted in repr(play(scene, rule))


def test_a_delay_holds_up_what_follows(play: Play) -> None:
    async def scene(pair: Pair) -> None:
        sending = asyncio.ensure_future(pair.send(ONE, TWO))
        began = asyncio.get_running_loop().time()
        assert await pair.receive(2) == [ONE, TWO]
        assert asyncio.get_running_loop().time() - began >= 0.03
        await sending

    assert play(scene, FaultRule(Fault.DELAY, seconds=0.04)).statistics().delayed == 1


def test_who_waits_out_a_delay_is_woken_by_the_close(play: Play) -> None:
    async def scene(pair: Pair) -> None:
        sending = asyncio.ensure_future(pair.send(ONE))
        await asyncio.sleep(0)
        await pair.close()
        with pytest.raises(CarrierClosedError):
            await sending

    play(scene, FaultRule(Fault.DELAY, seconds=1000.0))


@pytest.mark.parametrize(
    ("fault", "arrive"), [(Fault.KILL, [ONE]), (Fault.KILL_AFTER, [ONE, TWO])], ids=str
)
def test_a_carrier_breaks_before_or_after_a_message(
    play: Play, fault: Fault, arrive: list[bytes]
) -> None:
    async def scene(pair: Pair) -> None:
        await pair.send(ONE)
        with pytest.raises(CarrierClosedError, match="was broken by"):
            await pair.send(TWO)
        for use in (pair.send(THREE), pair.dialler.receive()):
            with pytest.raises(CarrierClosedError):
                await use
        assert await pair.receive(len(arrive)) == arrive
        with pytest.raises(CarrierClosedError):
            await pair.receive(1)

    assert play(scene, FaultRule(fault, "rpc.fetch")).statistics().killed == 1


def test_a_carrier_breaks_at_a_count_on_either_end(play: Play) -> None:
    async def scene(pair: Pair) -> None:
        await pair.send(ONE, ONE)
        await pair.receive(2)
        await pair.listener.send(ONE)
        with pytest.raises(CarrierClosedError):
            await pair.listener.send(TWO)
        await pair.dialler.receive()
        with pytest.raises(CarrierClosedError):
            await pair.dialler.receive()

    play(scene, FaultRule(Fault.KILL, at=2, sender="b"))


def test_chunks_of_a_lane_are_known_by_its_purpose(play: Play) -> None:
    async def scene(pair: Pair) -> None:
        await pair.shake_hands(purpose="bulk")
        await pair.send(b"any bytes", b"at all")
        assert await pair.receive(1) == [b"at all"]

    network = play(scene, FaultRule(Fault.DROP, "bulk"), shake=False)
    assert network.injected()[0].passing.carrier == "a>b bulk 1, from a"


def test_bytes_that_are_no_frame_pass(play: Play) -> None:
    async def scene(pair: Pair) -> None:
        await pair.send(b"nonsense", TAG + b"\xff\xff")
        assert await pair.receive(2) == [b"nonsense", TAG + b"\xff\xff"]

    assert play(scene).statistics().messages == 6


# -- partitions --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ends", [(), ("a",), ("b",), ("a", "b"), ("b", "a"), (["c", "a"], ["b"])], ids=repr
)
def test_a_network_that_is_cut_holds_back_what_is_sent(play: Play, ends: tuple[Any, ...]) -> None:
    async def scene(pair: Pair) -> None:
        network = pair.network
        network.partition(*ends)
        there = asyncio.ensure_future(pair.receive(2))
        back = asyncio.ensure_future(pair.dialler.receive())
        sending = [asyncio.ensure_future(pair.send(ONE, TWO))]
        sending.append(asyncio.ensure_future(pair.listener.send(THREE)))
        await until(lambda: network.statistics().held == 2)
        assert not any(task.done() for task in (there, back, *sending))
        network.heal()
        assert await there == [ONE, TWO]
        assert await back == THREE
        await asyncio.gather(*sending)

    play(scene)


def test_a_network_that_is_cut_one_way_lets_the_other_way_through(play: Play) -> None:
    async def scene(pair: Pair) -> None:
        pair.network.partition("a", "b", one_way=True)
        there = asyncio.ensure_future(pair.receive(1))
        sending = asyncio.ensure_future(pair.send(ONE))
        await pair.listener.send(THREE)
        assert await pair.dialler.receive() == THREE
        await until(lambda: pair.network.statistics().held == 1)
        assert not there.done()
        assert not sending.done()
        pair.network.heal()
        await sending
        assert await there == [ONE]

    assert play(scene).statistics().held == 1


@pytest.mark.parametrize("ends", [("c",), ("a", "c"), (["c", "d"], "b")], ids=repr)
def test_a_cut_elsewhere_is_none_here(play: Play, ends: tuple[Any, ...]) -> None:
    async def scene(pair: Pair) -> None:
        pair.network.partition(*ends)
        await pair.send(ONE)
        assert await pair.receive(1) == [ONE]

    assert play(scene).statistics().held == 0


def test_what_is_on_its_way_when_the_network_is_cut_is_held_back(play: Play) -> None:
    async def scene(pair: Pair) -> None:
        await pair.send(ONE)
        pair.network.partition("a", "b")
        receiving = asyncio.ensure_future(pair.receive(1))
        await until(lambda: pair.network.statistics().held == 1)
        pair.network.heal()
        assert await receiving == [ONE]

    play(scene)


def test_who_is_cut_off_does_not_hear_that_the_other_end_closed(play: Play) -> None:
    async def scene(pair: Pair) -> None:
        receiving = asyncio.ensure_future(pair.dialler.receive())
        pair.network.partition("a")
        await pair.listener.close()
        await until(lambda: pair.network.statistics().held == 1)
        assert not receiving.done()
        pair.network.heal()
        with pytest.raises(CarrierClosedError):
            await receiving

    play(scene)


def test_a_close_wakes_who_waits_for_the_network(play: Play) -> None:
    async def scene(pair: Pair) -> None:
        pair.network.partition("a", "b")
        sending = asyncio.ensure_future(pair.send(ONE))
        await until(lambda: pair.network.statistics().held == 1)
        await pair.close()
        with pytest.raises(CarrierClosedError):
            await sending

    play(scene)


def test_a_handshake_over_a_cut_breaks(play: Play) -> None:
    async def scene(pair: Pair) -> None:
        pair.network.partition("b")
        with pytest.raises(CarrierClosedError, match="the network is cut"):
            await pair.shake_hands()

    assert play(scene, shake=False).statistics().unreachable == 1


def test_nobody_can_be_dialled_while_everything_is_cut() -> None:
    network = FaultyNetwork()
    transport = FaultyTransport(InprocTransport(InprocNetwork()), network)
    network.partition("a")
    with pytest.raises(ConnectionRefusedError):  # this cut may be elsewhere
        asyncio.run(transport.dial("inproc://1"))
    network.partition()
    with pytest.raises(ConnectionError, match="the network is cut") as caught:
        asyncio.run(transport.dial("inproc://1"))
    assert not isinstance(caught.value, ConnectionRefusedError)  # which would be a loss
    assert network.statistics().unreachable == 1


@pytest.mark.parametrize("ends", [(), ("b",), ("a", "b")], ids=repr)
def test_a_kill_breaks_the_carriers_between_two(play: Play, ends: tuple[str, ...]) -> None:
    async def scene(pair: Pair) -> None:
        pair.network.kill("c")
        await pair.send(ONE)
        await pair.receive(1)
        pair.network.kill(*ends)
        for end in (pair.dialler, pair.listener):
            with pytest.raises(CarrierClosedError):
                await end.receive()

    assert play(scene).statistics().killed == 2  # both ends are faulty


def test_a_network_shows_its_seed_and_its_counts(play: Play) -> None:
    async def scene(pair: Pair) -> None:
        await pair.send(ONE)

    shown = repr(play(scene, seed=11, drop=1.0))
    assert "FaultPlan(seed=11, drop=1.0)" in shown
    assert "messages: 5, carriers: 2, dropped: 1" in shown


async def until(condition: Callable[[], bool]) -> None:
    """Lets the loop run until a condition holds; the scene's time limit bounds it."""
    while not condition():  # noqa: ASYNC110 - what changes the counts sets no event
        await asyncio.sleep(0.001)
