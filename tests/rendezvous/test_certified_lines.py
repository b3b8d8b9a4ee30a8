"""Lines to the coordinator under mutual TLS: whose they are, a certificate says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from telegrad.errors import AuthenticationError, RendezvousError
from telegrad.rendezvous.control import (
    COORDINATOR_RANK,
    JOIN,
    RESERVE,
    STANDING,
    ControlLine,
    line_owner,
)
from telegrad.rendezvous.coordinator import Coordinator
from telegrad.transport import Credentials, Exchange, GrpcTransport, Identity
from telegrad.transport.security.tls import self_signed_tls
from telegrad.types import WorkerInfo
from tests.transport.workers import SECONDS, TOKEN, Authority, Recorder

Open = Callable[[str, str], ControlLine]
Serve = Callable[[str], Coordinator]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def open_line(authority: Authority) -> Iterator[Open]:
    """Opens lines of a worker, with the certificate of perhaps another one."""
    lines: list[ControlLine] = []

    def open_(owner: str, certificate: str) -> ControlLine:
        transport = GrpcTransport(tls=authority.tls(certificate))
        line = ControlLine(job="job", rank=1, token=TOKEN, transports=[transport], owner=owner)
        lines.append(line)
        return line

    yield open_
    for line in lines:
        line.close(0.1)


@pytest.fixture
def serve(authority: Authority) -> Iterator[Serve]:
    """Makes coordinators with the certificate of a name, to be started."""
    with ExitStack() as stack:

        def serve_(name: str) -> Coordinator:
            transport = GrpcTransport(tls=authority.tls(name))
            made = Coordinator([transport], job="job", token=TOKEN, world_size=2)
            stack.callback(made.close, 0.5)
            return made

        yield serve_


def request(name: str, rank: int = 1, incarnation: int = 7) -> dict[str, object]:
    return {
        "name": name,
        "rank": rank,
        "world_size": 2,
        "incarnation": incarnation,
        "endpoints": [],
        "control": [],
        "lost_after": 10.0,
        "start_when": 1,
    }


def test_a_worker_joins_under_the_name_in_its_certificate(serve: Serve, open_line: Open) -> None:
    coordinator = serve("coordinator")
    endpoint = coordinator.start()[0]
    line = open_line("worker1", "Worker1")
    line.connect(endpoint, SECONDS)
    for kind, body in ((JOIN, request("worker2")), (RESERVE, {"name": "worker2"})):
        with pytest.raises(AuthenticationError, match="'worker1' is none on which 'worker2'"):
            line.ask(kind, body, timeout=SECONDS)
    assert not coordinator.members
    line.ask(JOIN, request("worker1"), timeout=SECONDS)
    assert [member.info.name for member in coordinator.members] == ["worker1"]


@pytest.mark.parametrize("owner", ["worker1", ""])
def test_a_line_of_somebody_elses(serve: Serve, open_line: Open, owner: str) -> None:
    coordinator = serve("coordinator")
    with pytest.raises(AuthenticationError, match="has shown the certificate of 'worker2'"):
        open_line(owner, "worker2").connect(coordinator.start()[0], SECONDS)


def test_a_worker_is_no_coordinator(serve: Serve, open_line: Open) -> None:
    coordinator = serve("worker2")
    with pytest.raises(AuthenticationError, match="certificate of 'worker2'.*issue coordinator"):
        open_line("worker1", "worker1").connect(coordinator.start()[0], SECONDS)


def test_a_worker_that_says_its_own_name_is_no_coordinator(
    authority: Authority, open_line: Open
) -> None:
    """Its certificate is right for that name, and whoever asks for -1 may say that it is it."""
    heard = Recorder()
    identity = Identity("job", WorkerInfo("worker2", COORDINATOR_RANK, 5))
    impostor = Exchange(
        Credentials(identity=identity, token=TOKEN, certified=line_owner),
        transports=[GrpcTransport(tls=authority.tls("worker2"))],
        receiver=heard,
    )
    endpoint = impostor.start()[0]
    try:
        line = open_line("worker1", "worker1")
        with pytest.raises(RendezvousError, match="coordinator was dialled, but worker2 listens"):
            line.connect(endpoint, SECONDS)
        assert line.coordinator is None
    finally:
        impostor.close(0.5)
    assert not heard.envelopes


def test_a_worker_asks_for_itself_alone(serve: Serve, open_line: Open) -> None:
    """The question ends the old line of whom it is about, and has it go on alone."""
    coordinator = serve("coordinator")
    endpoint = coordinator.start()[0]
    lines = [open_line(name, name) for name in ("worker0", "worker1", "worker1")]
    for line in lines:
        line.connect(endpoint, SECONDS)
    for rank, line in enumerate(lines[:2]):
        line.ask(JOIN, request(f"worker{rank}", rank, 7 + rank), timeout=SECONDS)
    with pytest.raises(AuthenticationError, match="'worker1' is none on which 'worker0'"):
        lines[2].ask(STANDING, {"incarnation": 7}, timeout=SECONDS)
    assert lines[0].ask(STANDING, {"incarnation": 7}, timeout=SECONDS) == {"member": True}
    assert coordinator.statistics().abandoned_by == 0
    answer = lines[2].ask(STANDING, {"incarnation": 8}, timeout=SECONDS)
    assert answer == {"member": None}
    assert coordinator.statistics().abandoned_by == 1


def plain_address(endpoint: str) -> str:
    """Where a worker dials that was told an address, as by MASTER_ADDR, and nothing of encryption."""
    return "grpc://" + endpoint.partition("://")[2]


MISMATCHES: dict[str, tuple[str, str, str]] = {
    # coordinator, worker, and what the worker is told
    "no certificate": ("mutual", "plain", "hangs up on a worker without a certificate"),
    "insecure, mutual": ("mutual", "insecure", "hangs up on a worker without a certificate"),
    "insecure, encrypted": ("self-signed", "insecure", "encrypts, and this worker is insecure"),
    "certificates here alone": ("plain", "mutual", "is without encryption, and this worker has"),
    "insecure there": ("insecure", "plain", "holds no token"),
}


@pytest.mark.parametrize("case", MISMATCHES)
def test_whoever_encrypts_otherwise_hears_of_it_at_once(authority: Authority, case: str) -> None:
    """The error was that of a coordinator that nobody started, after the whole init_timeout."""
    there, here, words = MISMATCHES[case]

    def transport(kind: str, name: str) -> GrpcTransport:
        if kind in {"plain", "insecure"}:
            return GrpcTransport(insecure=kind == "insecure")
        return GrpcTransport(tls=authority.tls(name) if kind == "mutual" else self_signed_tls())

    def token(kind: str) -> bytes | None:
        return None if kind == "insecure" else TOKEN

    coordinator = Coordinator(
        [transport(there, "coordinator")], job="job", token=token(there), world_size=2
    )
    line = ControlLine(
        job="job", rank=1, token=token(here), transports=[transport(here, "w")], owner="w"
    )
    try:
        endpoint = coordinator.start()[0]
        with pytest.raises(AuthenticationError, match=words):
            line.connect(plain_address(endpoint), SECONDS)
    finally:
        line.close(0.1)
        coordinator.close(0.5)
