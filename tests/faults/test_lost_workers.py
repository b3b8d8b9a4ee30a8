"""Workers that are killed before and while others shut down, who end within bounds."""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor

from telegrad import rpc
from telegrad.errors import WorkerLostError
from telegrad.testing import Cluster
from tests.faults import remote_code
from tests.faults.outcome import SOON
from tests.faults.remote_code import (
    entered,
    leave,
    leaves_with_a_call_in_flight,
)
from tests.repeated import repeated

# A refused dial need not wait for the bound of silence, which is more than a machine stands still.
PATIENT = rpc.RpcOptions(lost_after=40.0)
AT_ONCE = SOON


@repeated
def test_graceful_shutdown_with_dead_peers(pool: ThreadPoolExecutor, run: int) -> None:
    """worker3 was never called; worker2 dies while worker0's shutdown waits for it."""
    with Cluster(4, processes=True, options=PATIENT) as cluster:
        cluster.kill(3)
        leaving = pool.submit(cluster.call, 0, leaves_with_a_call_in_flight, "worker2", "held")
        cluster.call(2, entered, "held")
        assert cluster.call(1, remote_code.add, 1, 2) == 3
        cluster.kill(2)
        began = time.monotonic()
        assert cluster.call(1, leave) < AT_ONCE
        leaving.result(AT_ONCE).check(WorkerLostError, "worker 'worker2'", within=math.inf)
        assert time.monotonic() - began < AT_ONCE
