"""What the network of a test does wrong: a bit of everything, by seed."""

from __future__ import annotations

import dataclasses

from telegrad import rpc
from telegrad.testing import FaultPlan

# A message that is lost behind all others is missed at the next heartbeat, of which there are
# five in `lost_after`; the default of 10 s would make each such loss cost 2 s.
LOST_AFTER = 3.0
OPTIONS = rpc.RpcOptions(timeout=20.0, init_timeout=20.0, lost_after=LOST_AFTER)

# A cut that lasts is waited for in full.
CUT_OPTIONS = dataclasses.replace(OPTIONS, lost_after=1.0)


def a_bit_of_everything(seed: int, *, most: int | None = 12) -> FaultPlan:
    """Returns a plan that strikes about every fourth message; bounded, as each loss takes time."""
    return FaultPlan(
        seed=seed,
        drop=0.03,
        delay=0.1,
        duplicate=0.03,
        reorder=0.03,
        kill=0.05,
        longest_delay=0.005,
        most=most,
    )
