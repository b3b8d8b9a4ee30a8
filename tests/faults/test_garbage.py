"""Nonsense on the port, in the handshake, and inside streams in good form: workers serve on."""

from __future__ import annotations

import itertools
import os
import random
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import pytest

from telegrad import pb, rpc
from telegrad.testing import Cluster, held_references, leaks
from telegrad.transport import Carrier, CarrierClosedError, GrpcTransport
from telegrad.transport.grpc.options import split_address
from telegrad.transport.security.handshake import DialHandshake, Identity, Reason
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope, Frame, pack_frame
from tests.break_in.members import enlisted
from tests.break_in.remote_code import job_name_and_coordinator
from tests.conftest import TOKEN
from tests.faults import garbage
from tests.faults.processes import listeners
from tests.faults.remote_code import call_everybody, gradient_over, process_id
from tests.loops import on_loop

SECONDS = 20.0
COUNT = itertools.count()
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = struct.pack(">I", 0)[1:] + b"\x04\x00" + struct.pack(">I", 0)
NOISE = random.Random(7).randbytes(100_000)

RAW = {
    "nothing": b"",
    "zeros": bytes(1000),
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + NOISE[:512],
    "noise": NOISE,
    "preface, then noise": PREFACE + NOISE,
    "settings, then noise": PREFACE + SETTINGS + NOISE[:5000],
    "a frame that claims 16 MiB": PREFACE + SETTINGS + b"\xff\xff\xff\x00\x00" + bytes(4) + NOISE,
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    options = rpc.RpcOptions(token=TOKEN, timeout=SECONDS)
    with (
        pytest.MonkeyPatch.context() as patch,
        Cluster(2, processes=True, options=options) as cluster,
    ):
        # The coordinator's audit thread outlives a record by that; the leak check waits for it.
        patch.setattr("telegrad.transport.security.audit.IDLE_SECONDS", 0.01)
        cluster.run(call_everybody)
        yield cluster


@pytest.fixture(autouse=True)
def _serves_on(cluster: Cluster) -> Iterator[None]:
    """After each of them everybody answers everybody, from the same processes."""
    pids = cluster.run(process_id)
    yield
    assert cluster.run(call_everybody) == [["worker0", "worker1"]] * 2
    assert cluster.call(0, gradient_over, "worker1") == [2.0] * 3
    assert cluster.run(process_id) == pids


def ports(cluster: Cluster) -> list[int]:
    """Every port of the job: of the workers, of their lines to the coordinator, of that itself."""
    pids = [os.getpid(), *cluster.run(process_id)]
    found = sorted({each.port for pid in pids for each in listeners(pid)})
    assert len(found) >= 3
    return found


def grpc_ports(cluster: Cluster) -> list[int]:
    """The ports of the job where gRPC answers: of the workers, and of the coordinator."""
    _, coordinator = cluster.call(0, job_name_and_coordinator)
    endpoints = [coordinator, *(each for all_ in cluster.run(garbage.endpoints) for each in all_)]
    return sorted({split_address(each)[1] for each in endpoints if each.startswith("grpc")})


@pytest.mark.parametrize("data", RAW.values(), ids=RAW)
def test_raw_garbage_on_every_port(cluster: Cluster, data: bytes) -> None:
    with ExitStack() as stack:
        for port in ports(cluster):
            for closes in (True, False):
                stream = socket.create_connection(("127.0.0.1", port), SECONDS)
                stack.enter_context(stream)
                with suppress(OSError):  # it may be closed already
                    stream.sendall(data)
                    if closes:
                        stream.shutdown(socket.SHUT_WR)
        # While half of them are still open, and silent:
        assert cluster.run(call_everybody) == [["worker0", "worker1"]] * 2


def test_hundreds_of_strangers_that_say_nothing(cluster: Cluster) -> None:
    with ExitStack() as stack:
        for port in ports(cluster) * 40:
            stack.enter_context(socket.create_connection(("127.0.0.1", port), SECONDS))
        assert cluster.run(call_everybody) == [["worker0", "worker1"]] * 2


# -- strangers that speak gRPC -------------------------------------------------------------------


async def until_closed(carrier: Carrier) -> list[bytes]:
    messages = []
    with suppress(CarrierClosedError):
        while True:
            messages.append(await carrier.receive())
    await carrier.close()
    return messages


HELLOS = {"empty": b"", "short": b"H\xff\xff", "other": b"x" * 16384, "long": b"H" + NOISE}


@pytest.mark.parametrize("hello", HELLOS.values(), ids=HELLOS)
def test_garbage_in_place_of_a_hello(cluster: Cluster, hello: bytes) -> None:
    async def talk(port: int) -> list[bytes]:
        carrier = await GrpcTransport().dial(f"grpc://127.0.0.1:{port}")
        await carrier.send(hello)
        return await until_closed(carrier)

    for port in grpc_ports(cluster):
        (answer,) = on_loop(partial(talk, port))
        refusal = pb.Refusal.FromString(answer[1:])
        assert Reason(refusal.reason) is Reason.MALFORMED
        assert refusal.words


FRAMES = {
    "noise": NOISE[:500],
    "receipt for nothing": pack_frame(Frame(receipt=12)),
    "no number": pack_frame(Frame(envelopes=[Envelope("rpc.call", 1)])),
    "8 EiB announced": pb.Frame(
        envelopes=[pb.Envelope(number=1, kind="rpc.call", buffer_sizes=[2**63], buffers=[b""])]
    ),
    "a call without a body, and goodbye": pb.Frame(
        envelopes=[pb.Envelope(number=1, kind="rpc.call", call=1)], goodbye=pb.Goodbye(reason="x")
    ),
}


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
def test_garbage_of_a_member_that_has_only_the_token(cluster: Cluster, frame: Any) -> None:
    job, coordinator = cluster.call(0, job_name_and_coordinator)
    payload = frame if isinstance(frame, bytes) else frame.SerializeToString()

    async def talk(port: int, sealed: bool, info: WorkerInfo) -> None:
        carrier = await GrpcTransport().dial(f"grpc://127.0.0.1:{port}")
        shake = DialHandshake(Identity(job, info), TOKEN.encode())
        await carrier.send(shake.hello())
        shake.takes_answer(await carrier.receive())
        await carrier.send(shake.prove(0, resumes=False))
        shake.takes_welcome(await carrier.receive())
        await carrier.send(shake.frames().seal(payload) if sealed else payload)
        await until_closed(carrier)

    for port in grpc_ports(cluster):
        for sealed in (True, False):
            with enlisted(coordinator, job, TOKEN.encode(), f"mallory{next(COUNT)}") as info:
                on_loop(partial(talk, port, sealed, info))


# -- a member gone mad ---------------------------------------------------------------------------


def test_garbage_inside_a_well_formed_stream(cluster: Cluster) -> None:
    assert cluster.call(0, garbage.send_garbage, "worker1", garbage.known_kinds()) > 1000
    assert cluster.run(call_everybody) == [["worker0", "worker1"]] * 2
    for rank in (0, 1):  # what asks for something in good form may still be answered
        leaks.wait_until_gone("references", partial(held_by, cluster, rank))


def test_garbage_in_headers(cluster: Cluster) -> None:
    names = garbage.known_headers()
    assert {"rref", "dist_autograd"} <= {*names}
    ends = cluster.call(0, garbage.send_bad_headers, "worker1", names)
    for end in ends:
        assert end.kind in ("", "telegrad.errors:DecodeError"), end  # and no time-out


def held_by(cluster: Cluster, rank: int) -> list[str]:
    found = cluster.call(rank, held_references)
    return [f"worker{rank}: {count} {kind}" for kind, count in found.items() if count]
