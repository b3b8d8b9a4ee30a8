"""Where a worker listens and what it advertises, by what is bound and where the coordinator is."""

from __future__ import annotations

import functools
import socket
from dataclasses import replace

import pytest

from telegrad.errors import RendezvousError
from telegrad.rendezvous import JobAddress, JobPort, listening
from telegrad.rendezvous.listening import (
    Addresses,
    address_words,
    choose_place,
    host_of,
    host_place,
    loopback_words,
)
from telegrad.transport import GrpcTransport, LocalTransport
from telegrad.transport.addresses import Interface, address_of, interfaces, route_to

HERE, ELSEWHERE = "10.1.0.5", "10.2.0.9"  # an address of "this machine", one of another
HERE_V6, ELSEWHERE_V6 = "fd00:1::5", "fd00:2::9"


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> list[Interface]:
    """A machine with one address of each family, and a route to everywhere."""
    found = [Interface("eth0", HERE), Interface("eth0", HERE_V6)]
    own = {HERE, HERE_V6, "127.0.0.1", "::1"}
    monkeypatch.setattr(listening, "interfaces", lambda: found)
    monkeypatch.setattr(listening, "is_local", lambda address: address in own)
    monkeypatch.setattr(listening, "route_to", lambda to: HERE_V6 if ":" in to else HERE)
    return found


@pytest.mark.parametrize(
    ("bind", "advertise", "coordinator", "place"),
    [
        (None, None, None, Addresses("127.0.0.1", "127.0.0.1")),
        (None, None, "127.0.0.1", Addresses("127.0.0.1", "127.0.0.1")),
        (None, None, "127.0.0.2", Addresses("127.0.0.1", "127.0.0.1")),
        (None, None, "::1", Addresses("::1", "::1")),
        (None, None, ELSEWHERE, Addresses(HERE, HERE)),
        (None, None, ELSEWHERE_V6, Addresses(HERE_V6, HERE_V6)),
        (None, "gate.example", ELSEWHERE, Addresses(HERE, "gate.example")),
        ("0.0.0.0", None, ELSEWHERE, Addresses("0.0.0.0", HERE)),
        ("::", None, ELSEWHERE, Addresses("::", HERE)),
        ("::", None, ELSEWHERE_V6, Addresses("::", HERE_V6)),
        ("[::]", None, ELSEWHERE_V6, Addresses("::", HERE_V6)),
        ("0.0.0.0", None, "127.0.0.1", Addresses("0.0.0.0", "127.0.0.1")),
        ("0.0.0.0", "10.9.9.9", ELSEWHERE, Addresses("0.0.0.0", "10.9.9.9")),
        ("0.0.0.0", None, None, Addresses("0.0.0.0", HERE)),
        ("::", None, None, Addresses("::", HERE)),
        (HERE, None, ELSEWHERE, Addresses(HERE, HERE)),
        (HERE_V6, None, ELSEWHERE, Addresses(HERE_V6, HERE_V6)),
        ("localhost", None, None, Addresses("127.0.0.1", "127.0.0.1")),
        ("127.0.0.1", None, HERE, Addresses("127.0.0.1", "127.0.0.1")),
        ("127.0.0.1", "10.9.9.9", ELSEWHERE, Addresses("127.0.0.1", "10.9.9.9")),
        (None, None, "localhost", Addresses("127.0.0.1", "127.0.0.1")),
        ("127.0.0.1", "localhost", None, Addresses("127.0.0.1", "127.0.0.1")),
        ("::1", "LocalHost.", None, Addresses("::1", "::1")),
        ("::1", "localhost:4000", None, Addresses("::1", "[::1]:4000")),
        ("0.0.0.0", "localhost", ELSEWHERE, Addresses("0.0.0.0", "127.0.0.1")),
        ("::", "localhost", ELSEWHERE, Addresses("::", "127.0.0.1")),
        (None, "gate.example:4000", ELSEWHERE, Addresses(HERE, "gate.example:4000")),
        (None, "[fd00::7]:4000", ELSEWHERE_V6, Addresses(HERE_V6, "[fd00::7]:4000")),
        (None, "[fd00::7]", ELSEWHERE_V6, Addresses(HERE_V6, "fd00::7")),
    ],
)
def test_places(
    bind: str | None, advertise: str | None, coordinator: str | None, place: Addresses
) -> None:
    assert choose_place(bind, advertise, coordinator) == place


@pytest.mark.parametrize(
    ("bind", "coordinator", "words"),
    [
        ("127.0.0.1", ELSEWHERE, r"nobody reaches bind='127.0.0.1'.*10\.1\.0\.5 \(eth0\)"),
        ("10.7.7.7", ELSEWHERE, r"no address of this machine; it has 10\.1\.0\.5 \(eth0\)"),
        ("0.0.0.0", ELSEWHERE_V6, "say bind='::'"),
        ("0.0.0.0", "::1", "say bind='::'"),
    ],
)
def test_what_nobody_could_dial_is_refused(bind: str, coordinator: str, words: str) -> None:
    with pytest.raises(RendezvousError, match=words):
        choose_place(bind, None, coordinator)


@pytest.mark.parametrize("found", [None, "127.0.0.1"])
@pytest.mark.parametrize("bind", [None, "0.0.0.0"])
def test_without_a_route_the_error_lists_the_addresses(
    bind: str | None, found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "route_to", lambda to: found)
    words = r"no route to the coordinator at 10\.2\.0\.9.*10\.1\.0\.5 \(eth0\), fd00:1::5 \(eth0\)"
    with pytest.raises(RendezvousError, match=words):
        choose_place(bind, None, ELSEWHERE)


def test_words_for_dials_that_lead_nowhere(machine: list[Interface]) -> None:
    assert "127.0.0.1 leads nowhere" in loopback_words("grpc://127.0.0.1:4000")
    assert "localhost leads nowhere" in loopback_words("grpc://localhost:4000")
    for endpoint in ("grpcs://10.0.0.1:4000", "grpc://a:1", "local://0a1b/run/a/s"):
        assert loopback_words(endpoint) == ""
    assert str(machine[0]) in address_words("OSError: [Errno 101] Network is unreachable")
    assert address_words("connection refused") == ""


def test_several_addresses_are_not_guessed_at(machine: list[Interface]) -> None:
    machine.insert(0, Interface("docker0", "172.17.0.1"))
    words = r"172\.17\.0\.1 \(docker0\), 10\.1\.0\.5 \(eth0\).*RpcOptions\(advertise=...\)"
    with pytest.raises(RendezvousError, match=words):
        choose_place("0.0.0.0", None, None)


def hosting(host: str, port: int = 29500, *, file: str = "") -> JobAddress:
    return JobAddress(
        host=host, port=port, rank=0, world_size=1, job="job", hosts_store=True, file=file
    )


@pytest.mark.parametrize(
    ("address", "bind", "advertise", "place"),
    [
        (hosting(HERE), None, None, Addresses(HERE, HERE)),
        (hosting("::1"), None, None, Addresses("::1", "::1")),
        (hosting(HERE), "0.0.0.0", None, Addresses("0.0.0.0", HERE)),
        (hosting("192.0.2.77"), "0.0.0.0", None, Addresses("0.0.0.0", "192.0.2.77")),
        (hosting(HERE), None, "10.9.9.9", Addresses(HERE, "10.9.9.9")),
        (hosting("127.0.0.1", 0), None, None, Addresses("127.0.0.1", "127.0.0.1")),
        (hosting("127.0.0.1", 0, file="/f"), "0.0.0.0", None, Addresses("0.0.0.0", HERE)),
        # A name of loopback is not published.
        (hosting("localhost"), None, None, Addresses("127.0.0.1", "127.0.0.1")),
        (hosting("localhost"), "127.0.0.1", None, Addresses("127.0.0.1", "127.0.0.1")),
        (hosting("localhost"), "localhost", None, Addresses("127.0.0.1", "127.0.0.1")),
        (hosting("localhost"), "0.0.0.0", None, Addresses("0.0.0.0", "127.0.0.1")),
        (hosting("localhost"), "::", None, Addresses("::", "127.0.0.1")),
        (hosting("::1"), "::1", None, Addresses("::1", "::1")),
    ],
)
def test_places_of_who_hosts_the_coordinator(
    address: JobAddress, bind: str | None, advertise: str | None, place: Addresses
) -> None:
    assert host_place(address, bind, advertise) == place


@pytest.fixture
def of_debian(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of this machine means loopback here."""
    monkeypatch.setattr(listening, "is_local", lambda address: True)
    monkeypatch.setattr(
        listening, "address_of", lambda host: {"node1": "127.0.1.1"}.get(host, host)
    )


@pytest.mark.usefixtures("of_debian")
@pytest.mark.parametrize(
    ("bind", "advertise", "place"),
    [
        (None, None, Addresses("0.0.0.0", "node1")),
        ("0.0.0.0", None, Addresses("0.0.0.0", "node1")),
        (None, "10.9.9.9", Addresses("0.0.0.0", "10.9.9.9")),
        (HERE, None, Addresses(HERE, HERE)),
    ],
)
def test_among_several_hosts_a_name_of_loopback_is_dialled_by_name(
    bind: str | None, advertise: str | None, place: Addresses, caplog: pytest.LogCaptureFixture
) -> None:
    """Rank 0 listened on loopback alone, where its host's name leads on that host."""
    address = replace(hosting("node1"), several_hosts=True)
    hosts = host_place(address, bind, advertise)
    assert hosts.bind == place.bind
    assert bind == HERE or hosts == place
    assert choose_place(bind, advertise, "node1", several_hosts=True) == place
    assert not caplog.records
    assert host_place(hosting("node1"), None, None) == Addresses("127.0.1.1", "127.0.1.1")


def test_a_coordinator_that_is_to_be_elsewhere_is_not_hosted_here() -> None:
    words = r"'10\.2\.0\.9' is no address of its machine \(10\.1\.0\.5 \(eth0\).*bind='0\.0\.0\.0'"
    with pytest.raises(RendezvousError, match=words):
        JobPort(hosting(ELSEWHERE), GrpcTransport)


def test_a_name_that_means_loopback_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    host_place(hosting("localhost"), None, None)
    assert "leads nowhere from other hosts" in caplog.text


@pytest.mark.parametrize(
    ("endpoint", "host"),
    [
        ("grpc://10.0.0.1:4", "10.0.0.1"),
        ("grpcs://[::1]:4", "::1"),
        ("local://0a1b/a/b:c", None),
        ("inproc://3", None),
    ],
)
def test_the_host_of_an_endpoint(endpoint: str, host: str | None) -> None:
    assert host_of(endpoint) == host


def test_a_unix_socket_and_a_coordinator_at_a_port_do_not_go_together() -> None:
    with pytest.raises(ValueError, match="write init_method='file:///path' on all workers"):
        JobPort(hosting("127.0.0.1"), GrpcTransport, bind="unix")


def test_a_unix_socket_and_a_coordinator_elsewhere_do_not_go_together() -> None:
    away = JobAddress(host=ELSEWHERE, port=1, rank=1, world_size=2, job="job", hosts_store=False)
    make = functools.partial(GrpcTransport, insecure=True)
    port = JobPort(away, make, bind="unix", local=[LocalTransport()])
    with pytest.raises(RendezvousError, match="on another host, from where nobody reaches"):
        port.found(f"grpc://{ELSEWHERE}:1")


def test_names_that_nobody_knows_are_named() -> None:
    with pytest.raises(OSError, match=r"the host name 'no\.such\.invalid' is not known here"):
        address_of("no.such.invalid")


def test_of_this_machine_as_it_is() -> None:
    assert address_of("localhost") == "127.0.0.1"
    assert route_to("127.0.0.1") == "127.0.0.1"
    for each in interfaces():
        assert route_to(each.address) == each.address


def test_nobody_hosts_the_coordinator_beside_where_it_is_dialled() -> None:
    with pytest.raises(
        RendezvousError, match=r"at 127\.0\.0\.1, .*tcp://\[::1\]:29500 on all workers"
    ):
        host_place(hosting("localhost"), "::1", None)
