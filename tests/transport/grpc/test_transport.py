"""What only sockets and processes can get wrong."""

from __future__ import annotations

import gc
import signal
import socket
import threading
import weakref
from typing import TYPE_CHECKING

import numpy as np
import pytest

from telegrad.testing.leaks import wait_until_gone
from telegrad.transport import Carrier, GrpcTransport, shared_loop_thread
from telegrad.transport.grpc.options import split_address
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope
from tests.transport.workers import SECONDS, Floor, ManualClock, let_pass

if TYPE_CHECKING:
    from tests.conftest import Programs

PEER = """
import logging, sys, threading
logging.getLogger("asyncio").setLevel(logging.ERROR)  # of slow turns, which a busy machine makes
from telegrad.transport import Credentials, Exchange, GrpcTransport, Identity, Receiver
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope

class Noted(Receiver):
    def on_envelope(self, peer, envelope):
        exchange.post(peer, Envelope("test.reply", envelope.call, reply=True))
    def on_lost(self, peer, error):
        lost.set()

lost = threading.Event()
identity = Identity("job", WorkerInfo("bob", 1, 1))
credentials = Credentials(identity=identity, token=b"a token that only the tests use")
exchange = Exchange(credentials, transports=[GrpcTransport()], receiver=Noted())
print(exchange.start()[0], flush=True)
lost.wait()
if "close" in sys.argv:
    exchange.close(5.0)
"""


def test_two_servers_never_share_a_port(grpc_floor: Floor) -> None:
    first = grpc_floor.worker("alice")
    _, port = split_address(first.endpoints[0])
    words = rf"127\.0\.0\.1:{port} .*another process may use the port: name a free one, or 0"
    with pytest.raises(OSError, match=words) as error:
        grpc_floor.worker("bob", transport=GrpcTransport(port=port))
    assert error.value.errno is not None


def test_a_port_is_free_again_after_the_close(grpc_floor: Floor) -> None:
    alice, bob = grpc_floor.pair()
    alice.send(bob, 1)
    bob.exchange.close(SECONDS)
    _, port = split_address(bob.endpoints[0])
    again = grpc_floor.worker("bob", incarnation=2, transport=GrpcTransport(port=port))
    assert again.endpoints == bob.endpoints


def test_an_address_that_stands_for_all_is_not_what_peers_dial(grpc_floor: Floor) -> None:
    with pytest.raises(ValueError, match="advertise="):
        grpc_floor.worker("alice", transport=GrpcTransport(bind="0.0.0.0", insecure=True))
    with pytest.raises(ValueError, match="advertise="):
        grpc_floor.worker("alice", transport=GrpcTransport(bind="0.0.0.0"))
    open_ = GrpcTransport(bind="0.0.0.0", advertise="127.0.0.1", insecure=True)
    host = grpc_floor.worker("host", transport=open_)
    assert host.endpoints[0].startswith("grpc://127.0.0.1:")
    alice = grpc_floor.worker("alice").knows(host)
    alice.send(host, 1)


def test_an_address_of_another_machine(grpc_floor: Floor) -> None:
    with pytest.raises(OSError, match=r"192\.0\.2\.1"):
        grpc_floor.worker("alice", transport=GrpcTransport("192.0.2.1", 4000, insecure=True))


def test_a_proxy_of_the_shell_is_not_asked(
    grpc_floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("grpc_proxy", "http://127.0.0.1:1")
    alice, bob = grpc_floor.pair()
    alice.send(bob, 1)


def test_endpoints_are_tried_in_order_and_a_deaf_one_holds_nobody_up(grpc_floor: Floor) -> None:
    """The first has a full backlog and never answers; the second is refused; the third is it."""
    with socket.socket() as deaf, socket.socket() as free:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        free.bind(("127.0.0.1", 0))
        first = f"grpc://127.0.0.1:{deaf.getsockname()[1]}"
        second = f"grpc://127.0.0.1:{free.getsockname()[1]}"
        # The deaf one is given up long after this test has.
        alice, bob = grpc_floor.worker("alice", prove_within=1000.0), grpc_floor.worker("bob")
        alice.exchange.connect(bob.info, [first, "unknown://nowhere", second, *bob.endpoints])
        alice.send(bob, 1)
        assert not alice.recorder.lost


def test_a_process_that_is_killed_is_lost_at_once(grpc_floor: Floor, programs: Programs) -> None:
    program = programs.start(["python", programs.script(PEER)])
    endpoint = program.wait_for("\n").strip()
    alice = grpc_floor.worker("alice", lost_after=1000.0)  # silence can lose nobody
    info = alice.exchange.introduce(endpoint, timeout=SECONDS)
    program.process.kill()
    error = alice.recorder.wait_lost()
    assert error.worker == info.name
    assert "its process is gone" in error.reason
    program.wait(code=-9)


@pytest.mark.long
@pytest.mark.parametrize("word", ["exit", pytest.param("close", marks=pytest.mark.long)])
def test_a_process_ends_without_a_word(grpc_floor: Floor, programs: Programs, word: str) -> None:
    """Whether it closes or not, nothing is printed while the interpreter goes down."""
    program = programs.start(["python", "-X", "dev", programs.script(PEER), word])
    endpoint = program.wait_for("\n").strip()
    alice = grpc_floor.worker("alice")
    alice.exchange.introduce(endpoint, timeout=SECONDS)
    alice.exchange.close(SECONDS)
    assert program.wait().strip() == endpoint


def test_a_plain_listener_has_to_answer_before_grpc_dials_it(grpc_floor: Floor) -> None:
    """gRPC kept its connection to a stopped process for seconds after the shutdown."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(SECONDS)
        alice, bob = grpc_floor.worker("alice"), WorkerInfo("bob", 1, 1)
        alice.exchange.connect(bob, [f"grpc://127.0.0.1:{listener.getsockname()[1]}"])
        alice.exchange.post(bob, Envelope("test.message"))
        asked, _ = listener.accept()
        with asked:
            asked.settimeout(SECONDS)
            assert asked.recv(3) == b"PRI"
        alice.exchange.close(0.1)


def test_a_peer_that_answers_no_hello_is_dialled_again(grpc_floor: Floor) -> None:
    """gRPC ended the read as if the task had been cancelled, and the dialling task ended with it."""
    dialled = threading.Semaphore(0)
    loop = shared_loop_thread().acquire()

    async def accept(carrier: Carrier) -> None:
        dialled.release()

    deaf = loop.run(GrpcTransport().listen(accept), SECONDS)
    try:
        alice = grpc_floor.worker("alice", prove_within=0.05)
        bob = WorkerInfo("bob", 1, 1)
        alice.exchange.connect(bob, [deaf.endpoint])
        alice.exchange.post(bob, Envelope("test.message"))
        for _ in range(2):
            assert dialled.acquire(timeout=SECONDS)
        alice.exchange.close(0.1)
    finally:
        loop.run(deaf.close(), SECONDS)
        loop.release()


@pytest.mark.long
@pytest.mark.parametrize("word", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_ends_or_stops_in_the_middle_of_big_ones(
    grpc_floor: Floor, programs: Programs, word: signal.Signals
) -> None:
    program = programs.start(["python", programs.script(PEER)])
    endpoint = program.wait_for("\n").strip()
    clock = ManualClock()
    alice = grpc_floor.worker("alice", clock=clock, lost_after=2.0)
    info = alice.exchange.introduce(endpoint, timeout=SECONDS)
    buffer = np.zeros(32 * 2**20, np.uint8)
    held = weakref.ref(buffer)
    for call in range(4):
        alice.exchange.post(info, Envelope("test.message", call, buffers=[buffer.data]))
    del buffer
    alice.recorder.wait_envelopes(1)
    for call in range(4, 8):
        more = np.zeros(32 * 2**20, np.uint8)
        alice.exchange.post(info, Envelope("test.message", call, buffers=[more.data]))
    program.process.send_signal(word)
    while word is signal.SIGSTOP and not alice.recorder.lost:
        let_pass(clock, 1.0, alice)
    assert alice.recorder.wait_lost().worker == info.name
    wait_until_gone("memory", lambda: [held()] if gc.collect() >= 0 and held() is not None else [])
    alice.exchange.close(SECONDS)
    program.kill()
