"""Workers over TLS: who is let in, who is found out, and what is said of it."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from telegrad.errors import AuthenticationError
from telegrad.testing import no_leaked_descriptors
from telegrad.testing.leaks import wait_until_gone
from telegrad.transport import (
    GrpcTransport,
    KeyPair,
    Tls,
    load_tls,
    security,
    self_signed_tls,
)
from telegrad.transport.addresses import interfaces
from telegrad.transport.grpc import dialer as dialler_module
from telegrad.transport.grpc.options import split_address
from telegrad.transport.security import tls as tls_module
from telegrad.transport.security.tags import PlainFrames
from telegrad.wire import Envelope
from tests.transport.between import Between
from tests.transport.workers import (
    SECONDS,
    Authority,
    Floor,
    Worker,
    WrappedTransport,
    floor_of,
    meanwhile,
    wait_until,
)


@pytest.fixture(params=["self-signed", "mutual"])
def tls_floor(request: pytest.FixtureRequest, authority: Authority) -> Iterator[Floor]:
    """Workers under each kind of TLS in turn."""
    with floor_of(request.param, authority) as workers:
        yield workers


def over(tls: Tls) -> GrpcTransport:
    return GrpcTransport(tls=tls)


def meet(dialler: Worker, listener: Worker) -> None:
    dialler.exchange.introduce(listener.endpoints[0], timeout=SECONDS)


def refusal(dialler: Worker, endpoint: str) -> str:
    """Returns why a dialler does not come in, whichever end says so."""
    with pytest.raises(AuthenticationError) as error:
        dialler.exchange.introduce(endpoint, timeout=SECONDS)
    return str(error.value)


def address() -> str:
    """Returns an address of this machine that is not loopback; skips where there is none."""
    found = [each.address for each in interfaces() if ":" not in each.address]
    if not found:
        pytest.skip("this machine has no IPv4 address but loopback")
    return found[0]


# -- what holds under both kinds --------------------------------------------------------------


def test_big_and_small_ones_arrive_and_frames_carry_no_tags(tls_floor: Floor) -> None:
    alice, bob = tls_floor.pair()
    assert alice.endpoints[0].startswith("grpcs://127.0.0.1:")
    big = np.arange(2**21, dtype=np.uint8)
    alice.post(bob, 1, buffers=[big.data])
    bob.post(alice, 2)
    [first] = bob.recorder.wait_envelopes(1)
    assert np.array_equal(np.frombuffer(first.buffers[0], np.uint8), big)
    alice.recorder.wait_envelopes(1)
    assert alice.exchange.statistics().lanes > 0
    streams = [worker.connection(peer.info).stream for worker, peer in ((alice, bob), (bob, alice))]
    bindings = {stream.carrier.binding for stream in streams if stream is not None}
    assert len(bindings) == 1
    assert len(bindings.pop()) == 32
    assert all(isinstance(stream.frames, PlainFrames) for stream in streams if stream is not None)


def test_another_token_does_not_help_the_right_certificate(tls_floor: Floor) -> None:
    host = tls_floor.worker("host")
    for token in (b"another token, long enough", None):
        stranger = tls_floor.worker("bob", token=token)
        words = refusal(stranger, host.endpoints[0])
        assert "the dialler holds " + ("another token" if token else "no token") in words
    assert not host.recorder.envelopes


def test_a_listener_that_says_nothing_holds_nobody_up_for_long(
    tls_floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialler_module, "CONNECT_SECONDS", 0.05)
    alice = tls_floor.worker("alice")
    with socket.socket() as deaf, no_leaked_descriptors():
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        with pytest.raises(ConnectionError, match="does not answer"):
            alice.exchange.introduce(f"grpcs://127.0.0.1:{deaf.getsockname()[1]}", timeout=SECONDS)


def test_a_listener_that_takes_no_stream_after_all_is_unreachable_and_no_more(
    grpc_floor: Floor, tmp_path: Path
) -> None:
    """It has shown its certificate and hangs up on gRPC; another time it may not."""
    here = address()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*written(tmp_path, self_signed_tls().pair))
    context.set_alpn_protocols(["h2"])
    alice = grpc_floor.worker("alice")

    def serve() -> None:
        accepted, _ = listening.accept()
        with context.wrap_socket(accepted, server_side=True) as first:
            first.sendall(b"anything")
            first.recv(1)
        with contextlib.suppress(OSError):
            while True:
                listening.accept()[0].close()

    with socket.create_server((here, 0)) as listening:
        serving = meanwhile(serve)
        with pytest.raises(ConnectionError, match="cannot be reached") as error:
            alice.exchange.introduce(
                f"grpcs://{here}:{listening.getsockname()[1]}", timeout=SECONDS
            )
        listening.shutdown(socket.SHUT_RDWR)
        serving.result(SECONDS)
    assert not isinstance(error.value, PermissionError)


def test_a_stranger_who_says_nothing_is_cut_off(tls_floor: Floor) -> None:
    """Before it has said anything gRPC alone knows of it."""
    host = tls_floor.worker("host", transport=tls_floor.grpc(handshake_seconds=0.05))
    with socket.create_connection(split_address(host.endpoints[0])) as stranger:
        stranger.settimeout(SECONDS)
        assert stranger.recv(1) == b""


@pytest.mark.parametrize("kind", ["grpc", "self-signed"])
def test_a_network_with_a_slow_round_trip(grpc_floor: Floor, kind: str) -> None:
    """gRPC gave up an attempt after 100 ms, which TLS over an ocean does not keep."""
    tls = None if kind == "grpc" else self_signed_tls()
    host = grpc_floor.worker("host", transport=GrpcTransport(tls=tls))
    alice = grpc_floor.worker("alice")
    with Between(host.endpoints[0], delay=0.08) as proxy:
        info = alice.exchange.introduce(proxy.endpoint, timeout=SECONDS)
        alice.exchange.post(info, Envelope("test.message", 1))
        host.recorder.wait_envelopes(1)
        alice.exchange.close(SECONDS)


# -- somebody in between ----------------------------------------------------------------------


def test_somebody_in_between_is_found_out_by_the_proofs(grpc_floor: Floor, tmp_path: Path) -> None:
    host = grpc_floor.worker("host", transport=over(self_signed_tls()))
    alice = grpc_floor.worker("alice")
    with Between(host.endpoints[0], written(tmp_path, self_signed_tls().pair)) as proxy:
        words = refusal(alice, proxy.endpoint)
        assert all(proxy.passed), "it passed nothing on"
    assert "somebody in between has shown a certificate of its own" in words
    assert not host.recorder.envelopes
    meet(alice, host)


def test_without_a_token_nobody_in_between_is_found_out(grpc_floor: Floor, tmp_path: Path) -> None:
    """The counterpart of the test above: it is the proofs that find it, and nothing else."""
    host = grpc_floor.worker("host", token=None, transport=over(self_signed_tls()))
    alice = grpc_floor.worker("alice", token=None)
    with Between(host.endpoints[0], written(tmp_path, self_signed_tls().pair)) as proxy:
        info = alice.exchange.introduce(proxy.endpoint, timeout=SECONDS)
        alice.exchange.post(info, Envelope("test.message", 1))
        host.recorder.wait_envelopes(1)
        alice.exchange.close(SECONDS)


@pytest.mark.parametrize(
    ("insider", "says"),
    [
        (True, "has shown the certificate of 'mallory'"),
        (False, "which this worker does not believe"),
    ],
)
def test_somebody_in_between_has_no_certificate_of_the_worker(
    grpc_floor: Floor, authority: Authority, tmp_path: Path, insider: bool, says: str
) -> None:
    """One of the job's own workers has a good certificate, and still not the right one."""
    signer = authority if insider else Authority(tmp_path / "other")
    shown = signer.tls("mallory").pair
    tls = authority.tls("host")
    host = grpc_floor.worker("host", transport=over(tls))
    alice = grpc_floor.worker("alice", transport=over(authority.tls("alice")))
    with Between(host.endpoints[0], written(tmp_path, shown)) as proxy:
        assert proxy.client is not None
        proxy.client.load_cert_chain(*written(tmp_path, authority.tls("mallory").pair))
        words = refusal(alice, proxy.endpoint)
    assert says in words
    assert not host.recorder.envelopes


def written(directory: Path, pair: KeyPair) -> tuple[Path, Path]:
    paths = directory / "written.crt", directory / "written.key"
    paths[0].write_bytes(pair.certificate)
    paths[1].write_bytes(pair.key)
    return paths


# -- less than TLS ----------------------------------------------------------------------------


def test_a_worker_with_certificates_dials_nothing_plain(
    grpc_floor: Floor, authority: Authority
) -> None:
    """Whoever strips the s from an endpoint, and whoever answers there in plain."""
    alice = grpc_floor.worker("alice", transport=over(authority.tls("alice")))
    plain = grpc_floor.worker("host")
    encrypted = grpc_floor.worker("bob", transport=over(authority.tls("bob")))
    for listener in (plain, encrypted):
        _, port = split_address(listener.endpoints[0])
        words = refusal(alice, f"grpc://127.0.0.1:{port}")
        assert "without encryption, and this worker has certificates" in words
    words = refusal(alice, plain.endpoints[0].replace("grpc://", "grpcs://"))
    assert "does not speak TLS" in words
    assert "TELEGRAD_TLS_CERTIFICATE" in words


def test_nothing_plain_leaves_this_machine(grpc_floor: Floor) -> None:
    here = address()
    open_ = GrpcTransport(bind=here, insecure=True)
    host = grpc_floor.worker("host", transport=open_)
    alice = grpc_floor.worker("alice")
    assert "without encryption, which no worker does" in refusal(alice, host.endpoints[0])
    assert not host.exchange.statistics().connections
    friend = grpc_floor.worker("friend", transport=GrpcTransport(insecure=True))
    meet(friend, host)


def test_a_listener_that_encrypts_is_reached_by_its_plain_address_on_this_machine(
    grpc_floor: Floor,
) -> None:
    """One that listens everywhere encrypts, and the job knows it as 127.0.0.1."""
    everywhere = GrpcTransport(bind="0.0.0.0", advertise="127.0.0.1")
    host = grpc_floor.worker("host", transport=everywhere)
    _, port = split_address(host.endpoints[0])
    alice = grpc_floor.worker("alice")
    info = alice.exchange.introduce(f"grpc://127.0.0.1:{port}", timeout=SECONDS)
    stream = alice.connection(info).stream
    assert stream is not None
    assert stream.carrier.binding


def test_beyond_this_machine_workers_encrypt_by_themselves(grpc_floor: Floor) -> None:
    here = address()
    alice = grpc_floor.worker("alice", transport=GrpcTransport(bind=here))
    bob = grpc_floor.worker("bob", transport=GrpcTransport(bind=here))
    assert alice.endpoints[0].startswith(f"grpcs://{here}:")
    alice.knows(bob)
    bob.knows(alice)
    buffer = np.ones(2**20, np.uint8)
    alice.send(bob, 1, buffers=[buffer.data])
    stranger = grpc_floor.worker("carol", token=b"another token, long enough")
    assert "holds another token" in refusal(stranger, bob.endpoints[0])


def test_beyond_this_machine_needs_the_package_that_encrypts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] == "cryptography" or name.endswith("certificate_maker"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(security, "certificate_maker", raising=False)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(PermissionError, match=r"pip install cryptography.*insecure=True"):
        GrpcTransport(bind="0.0.0.0")
    GrpcTransport()


# -- names and authorities --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "certified"),
    [
        ("w.1", "w.1"),
        ("Trainer_0", "trainer_0"),
        ("a-", "A-"),
        ("10.0.0.1", "10.0.0.1"),
        ("_", "_"),
    ],
)
def test_names_are_those_of_workers(
    grpc_floor: Floor, authority: Authority, name: str, certified: str
) -> None:
    host = grpc_floor.worker(name, transport=over(authority.tls(certified)))
    alice = grpc_floor.worker("alice", transport=over(authority.tls("alice")))
    meet(alice, host)
    alice.send(host, 1)


def test_a_dialler_says_a_name_that_is_not_its_own(grpc_floor: Floor, authority: Authority) -> None:
    refused: list[tuple[str, str]] = []
    host = grpc_floor.worker(
        "host",
        transport=over(authority.tls("host")),
        on_refused=lambda info, words: refused.append((info.name, words)),
    )
    mallory = grpc_floor.worker("alice", transport=over(authority.tls("mallory", "m2")))
    words = refusal(mallory, host.endpoints[0])
    assert (
        "a peer that claims to be 'alice' has shown the certificate of 'm2' and 'mallory'" in words
    )
    assert "telegrad certs issue alice" in words
    wait_until("refusal", lambda: bool(refused))
    assert refused[0][0] == "alice"
    assert refused[0][1] in words


def test_a_listener_says_a_name_that_is_not_its_own(
    grpc_floor: Floor, authority: Authority
) -> None:
    mallory = grpc_floor.worker("bob", transport=over(authority.tls("mallory")))
    alice = grpc_floor.worker("alice", transport=over(authority.tls("alice")))
    alice.exchange.connect(mallory.info, mallory.endpoints)
    alice.post(mallory, 1)
    error = alice.recorder.wait_lost()
    assert "a peer that claims to be 'bob' has shown the certificate of 'mallory'" in error.reason
    assert not mallory.recorder.envelopes


def test_a_lane_comes_from_whom_its_stream_is_from(
    grpc_floor: Floor, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """The name is looked at on each: a stream's id alone lets nobody in, and costs no peer."""
    host = grpc_floor.worker("host", transport=over(authority.tls("host")))
    own = WrappedTransport(over(authority.tls("alice")))
    alice = grpc_floor.worker("alice", transport=own)
    meet(alice, host)
    big = np.ones(2**20, np.uint8)
    own.inner = over(authority.tls("mallory"))
    alice.post(host, 1, buffers=[big.data])
    (envelope,) = host.recorder.wait_envelopes(1)
    assert bytes(envelope.buffers[0]) == big.tobytes()  # in frames of the stream
    words = "has shown the certificate of 'mallory'"
    wait_until_gone("records", lambda: [] if words in caplog.text else [words])
    assert host.exchange.statistics().lanes == 0


def test_certificates_of_another_authority(
    grpc_floor: Floor, authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "other")
    host = grpc_floor.worker("host", transport=over(authority.tls("host")))
    alice = grpc_floor.worker("alice", transport=over(other.tls("alice")))
    words = refusal(alice, host.endpoints[0])
    assert "shows the certificate of 'host' (signed by 'telegrad CA" in words
    assert "valid until 20" in words
    assert "telegrad certs issue" in words


def test_a_listener_does_not_believe_the_certificate_of_a_dialler(
    grpc_floor: Floor, authority: Authority, tmp_path: Path
) -> None:
    """gRPC hangs up on it without a word, so that it is the dialler that says why."""
    other = Authority(tmp_path / "other")
    mine = authority.options("alice")
    theirs = other.options("alice")
    both = tmp_path / "both.crt"
    both.write_bytes(Path(mine.ca).read_bytes() + Path(theirs.ca).read_bytes())
    host = grpc_floor.worker("host", transport=over(authority.tls("host")))
    believing = load_tls(dataclasses.replace(theirs, ca=both), "alice")
    words = refusal(grpc_floor.worker("alice", transport=over(believing)), host.endpoints[0])
    assert "hangs up when it is shown the certificate of 'alice'" in words
    assert "its authority is another one" in words
    naked = grpc_floor.worker("bob")
    words = refusal(naked, host.endpoints[0])
    assert "hangs up on a worker without a certificate" in words
    assert "telegrad certs issue NAME" in words


def test_certificates_that_have_expired(
    grpc_floor: Floor, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They counted when their workers began."""
    late = authority.options("bob", days=-0.5)
    with pytest.raises(AuthenticationError, match=r"'bob'.*has expired; run: telegrad certs issue"):
        load_tls(late, "bob")
    monkeypatch.setattr(tls_module, "_try_out", lambda *_: None)
    expired = over(load_tls(late, "bob"))
    bob = grpc_floor.worker("bob", transport=expired)
    alice = grpc_floor.worker("alice", transport=over(authority.tls("alice")))
    words = refusal(alice, bob.endpoints[0])
    assert "shows the certificate of 'bob'" in words
    assert "certificate has expired" in words
    words = refusal(bob, alice.endpoints[0])
    assert "hangs up when it is shown the certificate of 'bob'" in words
    assert "it has expired" in words


def test_a_listener_whose_certificate_is_its_own_work(
    grpc_floor: Floor, authority: Authority
) -> None:
    host = grpc_floor.worker("host", transport=over(self_signed_tls()))
    alice = grpc_floor.worker("alice", transport=over(authority.tls("alice")))
    assert "which no authority stands for" in refusal(alice, host.endpoints[0])
