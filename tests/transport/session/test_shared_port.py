"""One port for several exchanges: whoever dials is led to whom it names."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from telegrad.errors import RendezvousError
from telegrad.transport import GrpcTransport, SharedPort
from telegrad.wire import Envelope
from tests.transport.workers import SECONDS, Floor, Worker

BIG = 3 * 2**20


@pytest.fixture
def port(floor: Floor) -> SharedPort:
    return SharedPort(floor.transport())


@pytest.fixture
def two(floor: Floor, port: SharedPort) -> tuple[Worker, Worker]:
    return floor.worker("agent", transport=port), floor.worker("line", transport=port)


def test_each_is_reached_by_its_name(floor: Floor, two: tuple[Worker, Worker]) -> None:
    agent, line = two
    peer = floor.worker("peer").knows(agent, line)
    peer.post(line, 1)
    peer.post(agent, 2)
    line.recorder.wait_envelopes(1)
    agent.recorder.wait_envelopes(1)
    assert (agent.recorder.calls(), line.recorder.calls()) == ([2], [1])


def test_lanes_lead_to_the_one_whose_stream_it_is(floor: Floor, two: tuple[Worker, Worker]) -> None:
    peer = floor.worker("peer").knows(*two)
    for call, worker in enumerate(two):
        data = bytes([call]) * BIG
        peer.exchange.post(worker.info, Envelope("test.message", call, buffers=[data]))
    for call, worker in enumerate(two):
        (envelope,) = worker.recorder.wait_envelopes(1)
        assert envelope.call == call
        assert bytes(envelope.buffers[0]) == bytes([call]) * BIG


def test_who_names_nobody_meets_the_one_that_listened_first(
    floor: Floor, two: tuple[Worker, Worker]
) -> None:
    peer = floor.worker("peer")
    assert peer.exchange.introduce(two[1].endpoints[0], timeout=SECONDS) == two[0].info


@pytest.mark.parametrize(("name", "incarnation"), [("agent", 2), ("nobody", 1)])
def test_who_is_not_there_is_lost_at_once(
    floor: Floor, two: tuple[Worker, Worker], name: str, incarnation: int
) -> None:
    other = floor.worker(name, incarnation=incarnation)
    peer = floor.worker("peer")
    peer.exchange.connect(other.info, two[0].endpoints)
    peer.exchange.post(other.info, Envelope("test.message", 1))
    error = peer.recorder.wait_lost()
    assert "gone" in error.reason or "listens there now" in error.reason


def test_the_port_stays_open_until_the_last_has_closed(
    floor: Floor, two: tuple[Worker, Worker]
) -> None:
    agent, line = two
    agent.exchange.close(SECONDS)
    peer = floor.worker("peer").knows(line)
    peer.send(line, 1)
    late = floor.worker("late").knows(line)  # first: the kernel may give it the port that is free
    line.exchange.close(SECONDS)
    late.post(line, 2)
    assert "nobody listens" in late.recorder.wait_lost().reason


def test_a_stranger_is_refused_in_the_words_of_the_first(
    floor: Floor, two: tuple[Worker, Worker]
) -> None:
    stranger = floor.worker("stranger", job="another job")
    with pytest.raises(RendezvousError, match="belongs to job 'another job', agent to job 'job'"):
        stranger.exchange.introduce(two[0].endpoints[0], timeout=SECONDS)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port in use."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield int(listening.getsockname()[1])


def ports_of(*numbers: int) -> SharedPort:
    port = SharedPort(GrpcTransport())
    first = GrpcTransport(port=numbers[0])
    port.place([first.on_port(each) for each in numbers], f"ports {numbers}")
    return port


def test_the_first_free_port_of_several_is_taken(grpc_floor: Floor, taken: int) -> None:
    worker = grpc_floor.worker("worker", transport=ports_of(taken, 0))
    assert worker.endpoints[0].startswith("grpc://127.0.0.1:")
    assert worker.endpoints[0] != f"grpc://127.0.0.1:{taken}"


def test_when_no_port_is_free_the_error_lists_what_was_tried(grpc_floor: Floor, taken: int) -> None:
    expected = rf"ports \({taken}, {taken}\) are in use, every one; name more ports"
    with pytest.raises(OSError, match=expected):
        grpc_floor.worker("worker", transport=ports_of(taken, taken))


def test_the_error_of_a_single_port_is_the_transports_own(grpc_floor: Floor, taken: int) -> None:
    with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{taken}"):
        grpc_floor.worker("worker", transport=ports_of(taken))
