"""`init_method="multicast://..."`: in threads and processes of one host, among strangers.

Between hosts: tests/hosts/test_multicast.py.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telegrad.errors import RendezvousError, RendezvousTimeoutError
from telegrad.rendezvous import Coordinator, JobPort, JoinedJob, multicast
from telegrad.rendezvous import parse_init_method as parse
from telegrad.rendezvous.multicast import (
    Datagram,
    MulticastGroup,
    MulticastSource,
    check_group,
    read_datagram,
)
from telegrad.transport import GrpcTransport
from tests.conftest import Programs
from tests.rendezvous.test_file_init import PROGRAM
from tests.rendezvous.test_join import join_as

_groups = itertools.count(1)


@pytest.fixture
def group() -> MulticastGroup:
    """A group that no other test has, in no other process either."""
    number = (os.getpid() * 31 + next(_groups)) % 2**16
    return MulticastGroup(f"239.77.{number >> 8}.{number & 255}", 29577, "127.0.0.1")


@pytest.fixture
def open_source(group: MulticastGroup) -> Iterator[Callable[..., MulticastSource]]:
    opened: list[MulticastSource] = []

    def open_(job: str = "default") -> MulticastSource:
        opened.append(MulticastSource(group, job))
        return opened[-1]

    yield open_
    for source in opened:
        source.withdraw()
        source.withdraw()


def url(group: MulticastGroup, job: str = "default") -> str:
    return f"multicast://{group}?interface=127.0.0.1&job={job}"


def join(
    group: MulticastGroup, rank: int, *, timeout: float = 20.0, job: str = "default"
) -> JoinedJob:
    address = parse(url(group, job), rank=rank, world_size=2)
    return join_as(address, [GrpcTransport()], timeout=timeout)


def end(first: JoinedJob, second: JoinedJob, pool: ThreadPoolExecutor) -> None:
    done = pool.submit(second.shutdown)
    first.shutdown()
    first.close()
    done.result(20)
    second.close()


def read(source: MulticastSource, seconds: float = 10.0) -> str:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        found = source.read()
        if found is not None:
            return found.endpoint
    raise AssertionError("nothing was read")


def test_workers_meet_whoever_comes_first(group: MulticastGroup) -> None:
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(join, group, 1)
        first = join(group, 0)
        second = waiting.result(20)
        assert [member.info.name for member in first.members] == ["w0", "w1"]
        end(first, second, pool)
        late = pool.submit(join, group, 0)
        second = join(group, 1)
        end(late.result(20), second, pool)


def test_processes_meet(programs: Programs, group: MulticastGroup) -> None:
    script = programs.script(PROGRAM)
    late = programs.start(["python", script, url(group), "1"])
    first = programs.start(["python", script, url(group), "0"])
    assert "value 42" in first.wait()
    assert "value 42" in late.wait()


def test_two_jobs_of_one_group_are_kept_apart(group: MulticastGroup) -> None:
    with ThreadPoolExecutor(4) as pool:
        joining = {
            (job, rank): pool.submit(join, group, rank, job=job)
            for rank in (1, 0)
            for job in ("red", "blue")
        }
        joined = {key: future.result(20) for key, future in joining.items()}
        red, blue = joined["red", 1], joined["blue", 1]
        assert red.coordinator_endpoint == joined["red", 0].coordinator_endpoint
        assert red.coordinator_endpoint != blue.coordinator_endpoint
        for job in ("red", "blue"):
            end(joined[job, 0], joined[job, 1], pool)


def test_a_forged_answer_leads_to_a_refusal_and_the_search_goes_on(
    group: MulticastGroup, open_source: Callable[..., MulticastSource]
) -> None:
    """Whoever answers there; test_file_init.py has every kind of stranger."""
    impostor = Coordinator([GrpcTransport()], job="default", token=b"the token of somebody else")
    (endpoint,) = impostor.start()
    with ThreadPoolExecutor(2) as pool:
        open_source().publish(endpoint)
        waiting = pool.submit(join, group, 1)
        first = join(group, 0)
        end(first, waiting.result(20), pool)
    impostor.close()


def test_each_endpoint_has_its_turn(open_source: Callable[..., MulticastSource]) -> None:
    reader = open_source()
    for port in (1, 2):
        open_source().publish(f"grpc://127.0.0.1:{port}")
    found = [read(reader) for _ in range(6)]
    assert {endpoint: found.count(endpoint) for endpoint in found} == {
        "grpc://127.0.0.1:1": 3,
        "grpc://127.0.0.1:2": 3,
    }


def test_any_number_of_announced_endpoints_takes_little_memory(
    open_source: Callable[..., MulticastSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multicast, "MOST_ENDPOINTS", 3)
    reader = open_source()
    note, tries = reader._note, reader._tries
    for port in range(1, 10):
        note(f"grpc://127.0.0.1:{port}", "")
    assert len(tries) == 3
    assert read(reader) == "grpc://127.0.0.1:1"
    note("grpc://127.0.0.1:99", "")
    assert "grpc://127.0.0.1:1" not in tries
    assert "grpc://127.0.0.1:99" in tries


def test_what_was_withdrawn_is_announced_no_more(
    open_source: Callable[..., MulticastSource], group: MulticastGroup
) -> None:
    writer, reader = open_source(), open_source()
    assert reader.read() is None
    writer.publish("grpc://127.0.0.1:1")
    assert read(reader) == "grpc://127.0.0.1:1"
    before = threading.active_count()
    writer.withdraw()
    assert threading.active_count() == before - 1
    assert open_source().read() is None


def test_a_flood_of_questions_gets_few_answers(
    open_source: Callable[..., MulticastSource], group: MulticastGroup
) -> None:
    open_source().publish("grpc://127.0.0.1:1")
    with group.open() as asking:
        began, answers = time.monotonic(), 0
        for i in range(500):
            asking.sendto(Datagram("default", f"n{i}").data(), (group.address, group.port))
            asking.sendto(Datagram("other", f"n{i}").data(), (group.address, group.port))
            with contextlib.suppress(BlockingIOError):
                while True:
                    found = read_datagram(asking.recv(600))
                    answers += found is not None and bool(found.endpoint)
        seconds = time.monotonic() - began
    assert answers <= 1 + seconds / multicast.ANSWER_PAUSE


def test_rank_0_that_never_comes_is_named_with_the_remedy(group: MulticastGroup) -> None:
    with pytest.raises(RendezvousTimeoutError, match="has not answered on multicast") as caught:
        join(group, 1, timeout=0.5)
    assert str(group) in str(caught.value)
    assert "else write init_method='tcp://HOST:PORT'" in str(caught.value)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_network_without_multicast_is_told_so(
    group: MulticastGroup, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multicast, "ECHO_SECONDS", 0.2)
    open_ = MulticastGroup.open

    def open_deaf(group: MulticastGroup) -> socket.socket:
        opened = open_(group)
        leave = socket.inet_aton(group.address) + socket.inet_aton(group.interface)
        opened.setsockopt(socket.IPPROTO_IP, socket.IP_DROP_MEMBERSHIP, leave)
        return opened

    monkeypatch.setattr(MulticastGroup, "open", open_deaf)
    with pytest.raises(RendezvousError, match=r"came back within 0\.2 s; write '\?interface="):
        join(group, rank)


def test_that_takes_less_than_5_seconds() -> None:
    assert multicast.ECHO_SECONDS + multicast.LOOK_SECONDS + 0.5 < 5.0


@pytest.mark.parametrize("interface", ["192.0.2.77", "eth77"])
def test_an_interface_that_is_not_there(interface: str) -> None:
    source = MulticastSource(MulticastGroup("239.77.0.1", 29577, interface), "default")
    with pytest.raises(RendezvousError, match=f"through {interface} cannot be used.*'tcp://HOST"):
        source.read()
    source.withdraw()


def test_a_unix_socket_cannot_be_announced(open_source: Callable[..., MulticastSource]) -> None:
    with pytest.raises(RendezvousError, match="leave bind='unix' out, or write init_method='file"):
        open_source().publish("local://0123456789abcdef/tmp/x/s")
    address = parse("multicast://239.77.0.1:1", rank=0, world_size=2)
    with pytest.raises(ValueError, match="the coordinator on a network; write init_method='file"):
        JobPort(address, lambda *_: GrpcTransport(), bind="unix")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("multicast://10.0.0.1:1", "'10.0.0.1' is no multicast address; take one from 239"),
        ("multicast://group:1", "'group' is no multicast address"),
        ("multicast://239.0.0.1", "names no port; write 'multicast://host:port', for instance"),
        ("multicast://239.0.0.1:0", "port .* is 0"),
        ("multicast://239.0.0.1:1?iface=lo", "'iface' is not known, known are interface, job"),
    ],
)
def test_malformed_addresses(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse(text, rank=0, world_size=2)


def test_addresses() -> None:
    address = parse("multicast://[ff15::7]:4000?interface=eth1&job=j", rank=1, world_size=2)
    assert address.multicast == MulticastGroup("ff15::7", 4000, "eth1")
    assert (address.job, address.hosts_store, address.coordinator_endpoint) == ("j", False, "")
    assert parse("multicast://239.0.0.1:1?late=1").late
    assert check_group("224.0.0.1") == "224.0.0.1"


WORDS = st.from_regex(r"\A[A-Za-z0-9._-]{1,30}\Z")
ENDPOINTS = st.one_of(
    st.just(""),
    st.builds(
        lambda scheme, host, port: f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}",
        st.sampled_from(["grpc", "grpcs"]),
        st.ip_addresses().map(str),
        st.integers(1, 65535),
    ),
)


@pytest.mark.long
@given(WORDS, WORDS, ENDPOINTS)
def test_a_datagram_is_read_as_it_was_written(job: str, nonce: str, endpoint: str) -> None:
    datagram = Datagram(job, nonce, endpoint)
    data = datagram.data()
    assert read_datagram(data) == datagram
    for end_ in range(len(data)):
        assert read_datagram(data[:end_]) is None


@given(st.binary(max_size=600))
def test_anything_else_is_nothing(data: bytes) -> None:
    for each in (data, b"telegrad multicast 1\n" + data, b"telegrad multicast 1\nhere j n " + data):
        found = read_datagram(each)
        assert found is None or found.data() == each


@pytest.mark.parametrize(
    "endpoint",
    [
        "local://0123/tmp/s",
        "grpc://node7:4000",
        "grpc://10.0.0.1",
        "grpc://10.0.0.1:0",
        "grpc://10.0.0.1:70000",
        "grpc://a@10.0.0.1:1",
        "grpc://10.0.0.1:1/x",
        "tcp://10.0.0.1:1",
        "grpc://fd00::1:1",
    ],
)
def test_only_addresses_of_grpc_are_dialled(endpoint: str) -> None:
    assert read_datagram(f"telegrad multicast 1\nhere j n {endpoint}\n".encode()) is None
