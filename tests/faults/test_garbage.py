"""Nonsense on the port, in the handshake, and inside streams in good form: workers serve on."""

from __future__ import annotations

import os
import random
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial

import pytest

from telegrad import rpc
from telegrad.testing import Cluster, held_references, leaks
from tests.conftest import TOKEN
from tests.faults import garbage
from tests.faults.processes import listeners
from tests.faults.remote_code import call_everybody, gradient_over, process_id

SECONDS = 20.0
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


# -- strangers that speak gRPC -------------------------------------------------------------------


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
