"""A hundred big pushes at once to one server: it holds no more of them than its budget."""

from __future__ import annotations

from pathlib import Path

import pytest

from telegrad import rpc
from telegrad.rpc.seams import current_agent
from telegrad.testing import Cluster
from tests.rpc.promises import flood_code

MIB = 2**20
PUSHES, SIZE = 100, 64 * MIB
PUSHERS = 4
BUDGET = 256 * MIB
# Beside what was admitted: chunks that are being copied (two of 1 MiB for each of the two lanes of
# each pusher, as messages and as gRPC's buffers), what gRPC keeps for later, and pages that the
# allocator has not given back when the next message takes its own. On one host the pushers lend memory
# of their own in place of that, which their bounds hold (tests/transport/channels/test_ledger.py).
OVERHEAD = 160 * MIB


@pytest.mark.long
@pytest.mark.timeout(660)
@pytest.mark.parametrize("local", [True, False], ids=["local", "tcp"])
def test_a_hundred_pushes_of_64_mib(local: bool) -> None:
    available = next(
        int(line.split()[1]) // 1024
        for line in Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("MemAvailable")
    )
    needed = (PUSHES * SIZE + 2 * BUDGET) // MIB + 1024
    if available < needed:
        pytest.skip(f"all pushes together take {needed} MiB; {available} MiB are available")
    limits = rpc.Limits(pending_bytes=BUDGET)
    options = rpc.RpcOptions(timeout=600.0, limits=limits, direct=local or "tcp")
    with Cluster(1 + PUSHERS, processes=True, options=options, limit=600.0) as cluster:
        for pusher in range(1, 1 + PUSHERS):
            cluster.call(pusher, flood_code.pushes, "worker0", 1, SIZE)
        before = cluster.call(0, flood_code.begin)
        sums = cluster.run(push_from_all)
        resident, own, admitted, came = cluster.call(0, flood_code.peak)
        assert sums[1:] == [[SIZE // 4096] * (PUSHES // PUSHERS)] * PUSHERS
        assert came == PUSHES
        assert admitted <= BUDGET
        held = own if local else resident
        assert held - before <= BUDGET + OVERHEAD, f"admitted at most: {admitted}"


def push_from_all() -> list[int]:
    """On each worker: pushes to the first one, which itself pushes nothing."""
    if current_agent().info.name == "worker0":
        return []
    return flood_code.pushes("worker0", PUSHES // PUSHERS, SIZE)
