"""Workers that end in the middle, each in its way, while all others wait for them.

    FAULT=exits      rank 1 calls sys.exit, then rank 2's script ends without shutdown
    FAULT=fails      rank 1 raises
    FAULT=kills      rank 1 kills its own process
    FAULT=killed     rank 0, which hosts the coordinator, is killed by the test

The others are told, go on together, and shut down.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading

from telegrad import rpc
from tests.faults.outcome import failure_of, report

LIMIT = 40.0
ENDS = {"exits": (1, 2), "fails": (1,), "kills": (1,), "killed": (0,)}

arrivals, never, farewells = threading.Semaphore(0), threading.Event(), threading.Semaphore(0)


def who() -> str:
    return rpc.get_worker_info().name


def hold() -> None:
    """Is not answered: its worker ends before."""
    arrivals.release()
    assert not never.wait(LIMIT), "this worker ought to have ended"


def farewell() -> None:
    farewells.release()


def acquire(semaphore: threading.Semaphore, times: int) -> None:
    for _ in range(times):
        assert semaphore.acquire(timeout=LIMIT), "somebody did not come"


def wait_for(to: str) -> None:
    """Waits for a worker without a limit, and tells how that ended."""
    report(f"waited for {to}", failure_of(lambda: rpc.rpc_sync(to, hold, timeout=math.inf)))
    report(f"called {to} later", failure_of(lambda: rpc.rpc_sync(to, who)))
    report(f"left by {to}", " ".join(info.name for info in rpc.get_worker_infos()))


def survive(ending: tuple[int, ...]) -> None:
    for rank in ending:
        wait_for(f"worker{rank}")
    living = rpc.get_worker_infos()
    report("calls", " ".join(rpc.rpc_sync(info, who) for info in living))
    for info in living:  # where the coordinator is lost nobody else says when all are done
        rpc.rpc_sync(info, farewell)
    acquire(farewells, len(living))
    report("shutdown", failure_of(rpc.shutdown))


def end(fault: str, rank: int, waiting: int) -> None:
    acquire(arrivals, waiting)
    report("held", "all")
    if fault == "fails":
        raise ValueError("not today")
    if fault == "kills":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "killed":
        never.wait(LIMIT)
    if rank == 1:
        sys.exit(0)


def main() -> None:
    fault, rank = os.environ["FAULT"], int(os.environ["RANK"])
    report(f"pid of {rank}", str(os.getpid()))
    world_size = rpc.init_rpc().world_size
    ending = ENDS[fault]
    if rank in ending:
        if ending.index(rank):  # the first one was waited for by this one, too
            wait_for(f"worker{ending[0]}")
        end(fault, rank, world_size - 1 - ending.index(rank))
    else:
        survive(ending)


if __name__ == "__main__":
    main()
