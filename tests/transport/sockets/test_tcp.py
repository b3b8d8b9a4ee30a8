"""Streams that move from gRPC to TCP sockets: as all others, and nothing is lost on the way.

What is imported of `test_promise.py` and `test_lanes.py` runs here over sockets.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from telegrad.testing import leaks
from telegrad.transport import GrpcTransport, TcpTransport, self_signed_tls
from telegrad.transport.addresses import interfaces
from telegrad.transport.channels.lanes import LANES
from telegrad.transport.security.handshake import Reason, RefusedError
from telegrad.transport.session import ask as ask_module
from telegrad.transport.session import dial
from telegrad.transport.session.carriers import MOST_BROKEN_SOCKETS
from telegrad.transport.sockets import tcp as tcp_module
from tests.conftest import unused_port
from tests.loops import on_loop
from tests.transport.between import Between as Relay
from tests.transport.channels.test_lanes import (  # noqa: F401
    MIB,
    exchange_big_ones,
    test_big_ones_both_ways_at_once,
    test_both_close_with_big_ones_under_way,
)
from tests.transport.promises.test_promise import (  # noqa: F401
    test_a_conversation,
    test_a_fenced_peer_stays_out,
    test_a_goodbye_follows_what_was_posted_and_is_a_loss_with_its_reason,
    test_a_loss_lets_go_of_what_was_posted,
    test_a_refused_redial_is_a_loss_at_once,
    test_all_leave_at_once,
    test_an_envelope_arrives_whole,
    test_both_dial_at_once,
    test_both_directions_at_once_from_many_threads,
    test_idle_peers_keep_each_other_alive,
    test_introduce_while_the_other_dials,
    test_leaving_one_peer_keeps_the_others,
    test_small_ones_pass_a_big_one,
)
from tests.transport.security.test_tls import written
from tests.transport.sockets.proxy import Proxy
from tests.transport.test_addresses import needs_ipv6
from tests.transport.workers import (
    SECONDS,
    Authority,
    Floor,
    Worker,
    floor_of,
    has_moved,
    pattern,
    port_of,
    wait_until,
    wait_until_moved,
)

KINDS = ["tcp", "self-signed tcp", "mutual tcp"]
Between = Callable[..., tuple[Worker, Worker, Proxy]]


@pytest.fixture(params=["tcp", "self-signed tcp", pytest.param(KINDS[2], marks=pytest.mark.long)])
def floor(request: pytest.FixtureRequest, authority: Authority) -> Iterator[Floor]:
    with floor_of(request.param, authority) as workers:
        yield workers


@pytest.fixture(params=KINDS)
def each_floor(request: pytest.FixtureRequest, authority: Authority) -> Iterator[Floor]:
    """Workers over all three kinds, in `make test` as well."""
    with floor_of(request.param, authority) as workers:
        yield workers


def leads_to(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    """Makes every dialler dial this port of loopback in place of a direct port."""

    def endpoint(_: str, __: Sequence[str], *, encrypted: bool) -> str:
        return f"{'tcps' if encrypted else 'tcp'}://127.0.0.1:{port}"

    monkeypatch.setattr(ask_module, "direct_endpoint", endpoint)


def dials(floor: Floor, **options: Any) -> tuple[Worker, Worker]:
    """Returns two workers of which the first is going to dial, once it knows the other one."""
    alice, bob = floor.worker("alice", **options), floor.worker("bob", **options)
    bob.exchange.connect(alice.info, ())
    return alice, bob


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Iterator[Between]:
    """Makes two workers of which the first dials, and moves, through a proxy."""
    proxies: list[Proxy] = []

    def make(floor: Floor, **options: Any) -> tuple[Worker, Worker, Proxy]:
        alice, bob = dials(floor, **options)
        proxy = Proxy(port_of(bob))
        proxies.append(proxy)
        leads_to(monkeypatch, proxy.port)
        alice.knows(bob)
        return alice, bob, proxy

    yield make
    for proxy in proxies:
        with proxy:
            pass


def kept(worker: Worker, peer: Worker) -> str:
    """Returns why a stream stays on gRPC; empty while it has moved, or has not been tried."""
    return worker.connection(peer.info).direct.kept


def wait_until_kept(worker: Worker, peer: Worker) -> None:
    wait_until("to stay", lambda: bool(kept(worker, peer)))


def talk(alice: Worker, bob: Worker, calls: range) -> None:
    """Posts both ways and checks that each comes once, in its order."""
    for call in calls:
        alice.post(bob, call, buffers=[pattern(call, call)])
        bob.post(alice, call, buffers=[pattern(call, call)])
    for worker in (alice, bob):
        got = worker.recorder.wait_envelopes(calls.stop)
        assert [one.call for one in got] == list(range(calls.stop))
        assert all(bytes(one.buffers[0]) == pattern(one.call, one.call) for one in got)
        assert not worker.recorder.lost


# -- who moves ---------------------------------------------------------------------------------


@pytest.mark.few(1)
def test_a_stream_moves_and_goes_on(each_floor: Floor) -> None:
    alice, bob = each_floor.pair()
    talk(alice, bob, range(5))
    wait_until_moved(alice, bob)
    talk(alice, bob, range(5, 300))
    assert alice.exchange.statistics().connections == 1
    for one, other in ((alice, bob), (bob, alice)):
        one.post(other, 300, buffers=[pattern(3 * MIB)])
        got = other.recorder.wait_envelopes(301)
        assert bytes(got[-1].buffers[0]) == pattern(3 * MIB)
    assert [each.exchange.statistics().lanes for each in (alice, bob)] == [1, 1]
    assert has_moved(alice, bob)


def test_one_that_was_introduced_moves(floor: Floor) -> None:
    host, client = floor.worker("host"), floor.worker("alice", listen=False)
    client.exchange.introduce(host.endpoints[0], timeout=20.0)
    wait_until("moved", lambda: has_moved(client, host))
    client.send(host, 0)
    host.send(client, 0)


@pytest.mark.long
@pytest.mark.parametrize("who", ["alice", "bob"])
def test_both_ends_have_to_want_it(plain: Floor, who: str) -> None:
    alice = plain.worker("alice", sockets=who == "alice")
    bob = plain.worker("bob", sockets=who == "bob")
    alice.knows(bob)
    bob.exchange.connect(alice.info, ())
    talk(alice, bob, range(5))
    exchange_big_ones(alice, bob, 5)
    wait_until("lanes", lambda: alice.exchange.statistics().lanes == LANES)
    assert not has_moved(alice, bob)


def test_it_says_how_it_is_protected(each_floor: Floor) -> None:
    alice, bob = each_floor.pair()
    talk(alice, bob, range(5))
    wait_until_moved(alice, bob)
    encrypted = each_floor.kind != "tcp"
    bindings = set()
    for worker, peer in ((alice, bob), (bob, alice)):
        stream = worker.connection(peer.info).stream
        assert stream is not None
        assert stream.carrier.description.startswith("tcps" if encrypted else "tcp")
        bindings.add(stream.carrier.binding)
        names = stream.carrier.peer_names
        assert (names is not None and {"alice", "bob"} <= names) == each_floor.kind.startswith("m")
    assert len(bindings) == 1
    assert bool(bindings.pop()) == encrypted


@pytest.mark.long
def test_where_nobody_answers_it_stays(
    floor: Floor, between: Between, caplog: pytest.LogCaptureFixture
) -> None:
    alice, bob, proxy = between(floor)
    with proxy:
        pass  # and it is gone
    with caplog.at_level(logging.WARNING, "telegrad"):
        talk(alice, bob, range(50))
        wait_until("words", lambda: "calls to bob stay on gRPC: tcp" in caplog.text)
    assert "cannot be reached: " in kept(alice, bob)
    exchange_big_ones(alice, bob, 50)
    wait_until("lanes", lambda: alice.exchange.statistics().lanes == LANES)
    assert not has_moved(alice, bob)
    assert alice.exchange.statistics().connections == 1


# -- who answers at a direct port that is none of ours ------------------------------------------


class Impostor:
    """A listener that is no worker: it takes connections, says something, and may hang up."""

    def __init__(self, says: bytes, *, hangs_up: bool) -> None:
        self._says, self._hangs_up = says, hangs_up
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.came = threading.Event()
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connected, _ = self._listening.accept()
            except OSError:
                return
            self._open.append(connected)
            self.came.set()
            with contextlib.suppress(OSError):
                connected.sendall(self._says)
                if self._hangs_up:
                    connected.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Impostor:
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for each in (*self._open, self._listening):
            each.close()


@pytest.mark.parametrize(
    ("says", "hangs_up"),
    [
        (b"", True),
        (b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", True),
        (b"SSH-2.0-OpenSSH_9.6\r\n", False),
        (bytes(4) + b"\xff" * 100, False),
        ((2**31 - 1).to_bytes(4, "big"), False),
        (b"", False),
    ],
    ids=["closes", "http", "ssh", "noise", "big", "nothing"],
)
@pytest.mark.few(1)
def test_who_is_no_worker_leaves_it_on_grpc(
    floor: Floor, monkeypatch: pytest.MonkeyPatch, says: bytes, hangs_up: bool
) -> None:
    with Impostor(says, hangs_up=hangs_up) as impostor:
        alice, bob = dials(floor, prove_within=1.0)
        leads_to(monkeypatch, impostor.port)
        alice.knows(bob)
        talk(alice, bob, range(20))
        wait_until_kept(alice, bob)
        talk(alice, bob, range(20, 40))
        exchange_big_ones(alice, bob, 40)
    assert impostor.came.is_set()
    assert not has_moved(alice, bob)
    assert alice.exchange.statistics().connections == 1


@pytest.mark.long
def test_who_says_nothing_delays_nothing(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Big arrays wait for a quarter of a second, and calls do not wait at all."""
    with Impostor(b"", hangs_up=False) as silent:
        alice, bob = dials(floor, prove_within=0.5 * SECONDS)
        leads_to(monkeypatch, silent.port)
        alice.knows(bob)
        talk(alice, bob, range(20))
        exchange_big_ones(alice, bob, 20)
        assert not kept(alice, bob)  # it is still being tried
        assert alice.exchange.statistics().lanes > 0
    wait_until_kept(alice, bob)
    assert not has_moved(alice, bob)


@pytest.mark.long
def test_lanes_over_grpc_are_let_go_when_it_moves_after_all(
    floor: Floor, between: Between, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dial, "HELD_SECONDS", 0.0)
    alice, bob, _ = between(floor)
    exchange_big_ones(alice, bob)
    wait_until_moved(alice, bob)
    exchange_big_ones(alice, bob, 3)


def test_a_relay_that_ends_tls_is_found_out_by_the_proofs(
    encrypted: Floor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It shows a certificate of its own, as anybody can; the two ends then prove different ones."""
    refused: list[str] = []
    alice = encrypted.worker("alice")
    bob = encrypted.worker("bob", on_refused=lambda _, words: refused.append(words))
    bob.exchange.connect(alice.info, ())
    shown = written(tmp_path, self_signed_tls().pair)
    with Relay(f"grpcs://127.0.0.1:{port_of(bob)}", shown) as relay:
        leads_to(monkeypatch, int(relay.endpoint.rpartition(":")[2]))
        alice.knows(bob)
        call = 0
        while not kept(alice, bob):
            talk(alice, bob, range(call, call + 20))
            call += 20
        talk(alice, bob, range(call, call + 20))
        assert all(relay.passed), "it passed nothing on"
    assert not has_moved(alice, bob)
    assert len(refused) == 1, "nobody tries again"
    assert all("somebody in between has shown a certificate of its own" in each for each in refused)


@pytest.mark.parametrize("kind", ["tcp", "self-signed tcp"])
def test_a_port_that_encrypts_and_one_that_does_not(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream stays where either end finds the other one's port to be of the wrong kind."""
    other = "self-signed tcp" if kind == "tcp" else "tcp"
    with floor_of(kind) as floor, floor_of(other) as wrong:
        alice, bob = dials(floor)
        leads_to(monkeypatch, port_of(wrong.worker("bob")))
        alice.knows(bob)
        talk(alice, bob, range(20))
        wait_until_kept(alice, bob)
        talk(alice, bob, range(20, 40))
        assert not has_moved(alice, bob)


def test_nothing_plain_is_dialled_on_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is a token; an insecure job has neither."""
    found = [each.address for each in interfaces() if ":" not in each.address]
    here = found[0] if found else "127.0.0.1"
    if not found:
        monkeypatch.setattr(tcp_module, "is_loopback", lambda _: False)
    with socket.create_server((here, 0)) as listening:
        endpoint = f"tcp://{here}:{listening.getsockname()[1]}"

        def dialler(*, insecure: bool) -> TcpTransport:
            return TcpTransport((), lambda: None, insecure=insecure)

        async def dial() -> None:
            with pytest.raises(
                RefusedError, match="which no worker does that is not insecure"
            ) as no:
                await dialler(insecure=False).dial(endpoint)
            assert no.value.reason is Reason.AUTHENTICATION
            await (await dialler(insecure=True).dial(endpoint)).close()

        on_loop(dial)


def test_a_worker_with_certificates_dials_nothing_plain(authority: Authority) -> None:
    """Not even on this machine."""
    tls = authority.tls("alice")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        endpoint = f"tcp://127.0.0.1:{listening.getsockname()[1]}"

        async def dial() -> None:
            with pytest.raises(ConnectionError, match="without encryption"):
                await TcpTransport((), lambda: None, tls=tls).dial(endpoint)

        on_loop(dial)


# -- ports ---------------------------------------------------------------------------------------


def listening_on(floor: Floor, name: str, *ports: int) -> Worker:
    """Returns a worker that tries these direct ports."""
    return floor.worker(name, sockets=TcpTransport(ports, lambda: ("127.0.0.1", None)))


def test_the_first_free_port_of_a_range_is_taken(plain: Floor) -> None:
    with Proxy(0) as one, Proxy(0) as other:
        free = unused_port()
        bob = listening_on(plain, "bob", one.port, other.port, free)
        assert port_of(bob) == free
    alice = plain.worker("alice").knows(bob)
    talk_one_way(alice, bob)
    wait_until_moved(alice, bob)


def talk_one_way(alice: Worker, bob: Worker) -> None:
    alice.send(bob, 1)


def test_where_all_ports_are_taken_calls_go_over_grpc(
    plain: Floor, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        Proxy(0) as one,
        Proxy(0) as other,
        caplog.at_level(logging.WARNING, "telegrad"),
    ):
        bob = listening_on(plain, "bob", one.port, other.port)
        expected = f"cannot listen on port {one.port} to {other.port} of 127.0.0.1 (Address already"
        wait_until("words", lambda: expected in caplog.text)
        assert bob.sockets[0].told == ()
        alice = plain.worker("alice").knows(bob)
        talk_one_way(alice, bob)
        assert not has_moved(alice, bob)
        assert not kept(alice, bob)


def test_every_address_without_v6(plain: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was a ValueError, which ended the worker, instead of a port that cannot be had."""
    monkeypatch.setattr(socket, "has_ipv6", False)
    bob = plain.worker("bob", sockets=TcpTransport((0,), lambda: ("::", None)))
    alice = plain.worker("alice").knows(bob)
    talk_one_way(alice, bob)


@needs_ipv6
@pytest.mark.parametrize("kind", ["tcp", "self-signed tcp"])
def test_over_v6(kind: str) -> None:
    tls = self_signed_tls() if kind != "tcp" else None
    with floor_of(kind) as floor:
        alice, bob = (
            floor.worker(
                name,
                transport=GrpcTransport(bind="::1", tls=tls),
                sockets=TcpTransport((0,), lambda: ("::1", tls)),
            )
            for name in ("alice", "bob")
        )
        bob.exchange.connect(alice.info, ())
        alice.knows(bob)
        talk(alice, bob, range(5))
        wait_until_moved(alice, bob)
        stream = alice.connection(bob.info).stream
        assert stream is not None
        assert "://[::1]:" in stream.carrier.description


@pytest.mark.parametrize("n", [8, pytest.param(64, marks=pytest.mark.long)])
def test_many_peers_move(encrypted: Floor, n: int) -> None:
    host = encrypted.worker("host")
    peers = [encrypted.worker(f"peer{k}").knows(host) for k in range(n)]
    for peer in peers:
        peer.post(host, 0, buffers=[pattern(MIB, 1)])
    host.recorder.wait_envelopes(n)
    for peer in peers:
        wait_until_moved(peer, host)
        host.post(peer, 1, buffers=[pattern(MIB, 2)])
    for peer in peers:
        (got,) = peer.recorder.wait_envelopes(1)
        assert bytes(got.buffers[0]) == pattern(MIB, 2)
    assert host.exchange.statistics().connections == n


# -- what breaks ---------------------------------------------------------------------------------


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "cut",
    [
        0,
        300,
        600,
        5000,
        *(
            pytest.param(cut, marks=pytest.mark.long)
            for cut in (100, 450, 900, 1200, 1500, 1700, 1900, 2100, 60_000)
        ),
    ],
)
def test_what_breaks_in_the_middle_goes_on(floor: Floor, between: Between, cut: int) -> None:
    alice, bob, proxy = between(floor)
    proxy.cuts = [cut]
    call = 0
    while proxy.connections < 2 and not kept(alice, bob):  # in the hellos it stays where it was
        talk(alice, bob, range(call, call + 50))
        call += 50
    if not kept(alice, bob):
        wait_until_moved(alice, bob)
    talk(alice, bob, range(call, call + 50))


@pytest.mark.few(1)
def test_after_some_that_broke_it_stays(
    floor: Floor, between: Between, caplog: pytest.LogCaptureFixture
) -> None:
    """Something in between lets handshakes pass and breaks what follows."""
    alice, bob, proxy = between(floor)
    proxy.cuts = [4000] * 100
    call = 0
    while "over gRPC for 600 s: too many sockets broke" not in caplog.text:
        talk(alice, bob, range(call, call + 50))
        call += 50
    tries = proxy.connections
    assert tries >= MOST_BROKEN_SOCKETS
    talk(alice, bob, range(call, call + 200))
    assert proxy.connections == tries
    assert not has_moved(alice, bob)


@pytest.mark.long
@pytest.mark.parametrize(
    "byte",
    [1200, 2000, *(pytest.param(n, marks=pytest.mark.long) for n in range(1500, 20_000, 997))],
)
def test_what_was_altered_on_the_way_is_never_handed_over(
    floor: Floor, between: Between, byte: int
) -> None:
    alice, bob, proxy = between(floor)
    proxy.alter_at = byte
    call = 0
    # What was altered ends the first socket; if it was a length, once 2**16 more bytes have come.
    while proxy.connections < 2 and not kept(alice, bob):
        talk(alice, bob, range(call, call + 500))
        call += 500


@pytest.mark.parametrize(
    "byte", [3, 8, 50, 200, *(pytest.param(n, marks=pytest.mark.long) for n in range(0, 700, 23))]
)
def test_a_handshake_of_tls_that_was_altered_is_none(
    encrypted: Floor, between: Between, byte: int
) -> None:
    alice, bob, proxy = between(encrypted, prove_within=1.0)  # one end may wait for more
    proxy.alter_at = byte
    talk(alice, bob, range(20))
    wait_until("tried", lambda: bool(kept(alice, bob)) or proxy.connections > 1)
    talk(alice, bob, range(20, 40))


def test_encrypted_bytes_tell_nothing(floor: Floor, between: Between) -> None:
    """Neither of messages, nor of the chunks on a lane."""
    alice, bob, proxy = between(floor)
    talk(alice, bob, range(5))
    wait_until_moved(alice, bob)
    data = pattern(2 * MIB)
    alice.send(bob, 5, document=b"a secret of nobody else's", buffers=[data])
    assert len(proxy.seen) > len(data)
    for secret in (b"a secret of nobody", data[5000:5100]):
        assert (secret in proxy.seen) is (floor.kind == "tcp")


@pytest.mark.parametrize("kind", ["tcp", "self-signed tcp"])
def test_nothing_is_left_open(kind: str) -> None:
    with leaks.no_leaked_descriptors(), floor_of(kind) as floor:
        alice, bob = floor.pair()
        talk(alice, bob, range(20))
        wait_until("moved", lambda: has_moved(alice, bob))
        floor.kill(bob)
        alice.recorder.wait_lost()
