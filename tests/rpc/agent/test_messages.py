"""Protocol messages between agents: bodies, and raw buffers behind them."""

from __future__ import annotations

import threading

from telegrad.types import WorkerInfo
from telegrad.wire import Envelope, read_body
from tests.rpc.conftest import Job

OVER_FAULTS_TOO = True


def test_buffers_arrive_behind_the_body_and_are_writable(job: Job) -> None:
    one, two = job.agents[:2]
    arrived = threading.Event()
    got: list[tuple[object, list[bytes]]] = []

    def take(peer: WorkerInfo, envelope: Envelope) -> None:
        for buffer in envelope.buffers:
            memoryview(buffer).cast("B")[:1] = b"!"
        got.append((read_body(envelope), [bytes(buffer) for buffer in envelope.buffers]))
        arrived.set()

    two.inbox.register("test.buffers", take)
    one.messages.post(two.info, "test.buffers", {"step": 3}, buffers=[b"abc", bytearray(300_000)])

    assert arrived.wait(20)
    assert got == [({"step": 3}, [b"!bc", b"!" + bytes(299_999)])]
