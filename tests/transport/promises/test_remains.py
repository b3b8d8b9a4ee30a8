"""What a worker keeps of its connections after shutdown(): its loop and gRPC's core, which are used again."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Programs

SURVIVOR = """
import gc, os, signal, sys, threading
import numpy as np
from telegrad import rpc
from telegrad.testing.leaks import open_descriptors, wait_until_gone

LOOP = 3  # descriptors of the loop that the next init_rpc uses
CORE_DESCRIPTORS, CORE_THREADS = 2, 1


def takes(x):
    return 1


def tasks():
    return len(os.listdir("/proc/self/task"))  # gRPC's threads are not all Python's


def kept():
    opened = len(open_descriptors()) - descriptors - LOOP
    more = opened - CORE_DESCRIPTORS, tasks() - threads - CORE_THREADS
    return [f"{more} more: {threading.enumerate()}, {open_descriptors()}"] if max(more) > 0 else []


if __name__ == "__main__":
    gc.disable()  # what waits for the collector may stay for ever
    descriptors, threads = len(open_descriptors()), tasks()
    agent = rpc.init_rpc(options=rpc.RpcOptions(lost_after=2.0, **OPTIONS))
    lost = threading.Event()
    rpc.on_loss(lambda worker, error: lost.set())
    for other in rpc.get_worker_infos():
        rpc.rpc_sync(other, takes, (np.ones(2**17),))
    print("up", flush=True)
    if "healthy" not in sys.argv:
        signal.pause() if agent.rank == 0 else lost.wait()
    rpc.shutdown()
    wait_until_gone("descriptors and threads", kept)
"""


@pytest.mark.parametrize("options", [{}, {"direct": False}, {"direct": "tcp"}], ids=str)
@pytest.mark.parametrize("end", ["healthy", "kill", pytest.param("stop", marks=pytest.mark.long)])
@pytest.mark.long
def test_survivors_keep_no_thread_and_no_connection(
    programs: Programs, end: str, options: dict[str, object]
) -> None:
    """gRPC's objects waited for the collector, or for ever, and with them 8 threads."""
    script = programs.script(SURVIVOR.replace("OPTIONS", repr(options)))
    coordinator, *others = programs.ranks(script, 3, arguments=[end])
    for each in (coordinator, *others):
        each.wait_for("up")
    if end != "healthy":
        coordinator.process.send_signal(signal.SIGKILL if end == "kill" else signal.SIGSTOP)
    for each in others:
        each.wait()
    if end == "healthy":
        coordinator.wait()
    else:
        coordinator.kill()


AGAIN = """
import contextlib
from pathlib import Path
from telegrad.testing.leaks import wait_until_gone
from telegrad.transport import Credentials, Exchange, GrpcTransport, Identity, Receiver
from telegrad.types import WorkerInfo


class Deaf(Receiver):
    def on_envelope(self, peer, envelope):
        pass

    def on_lost(self, peer, error):
        pass


def timers():
    found = []
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended by now
            if "grpc_global" in (thread / "comm").read_text():
                found.append(thread.name)
    return found


if __name__ == "__main__":
    for _ in range(3):
        identity = Identity("job", WorkerInfo("bob", 1, 1))
        credentials = Credentials(identity=identity, token=b"a token that only the tests use")
        exchange = Exchange(credentials, transports=[GrpcTransport()], receiver=Deaf())
        exchange.start()
        exchange.close(5.0)
        # The thread gives itself its name, and may be late with that.
        wait_until_gone("the silence", lambda: [] if timers() else ["no timer yet"])
        print(timers())
"""


def test_the_core_of_grpc_is_never_shut_down(programs: Programs) -> None:
    """A thread of gRPC that had polled for a write crashed where the core went before it."""
    first, *later = programs.run(["python", programs.script(AGAIN)]).splitlines()
    assert later == [first, first]
