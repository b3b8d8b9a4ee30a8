"""What a replayed micro-batch costs that crosses one boundary, and what a step costs, counted.

Times depend on the machine and counts do not: whoever makes a crossing longer sees it here.
"""

from __future__ import annotations

import pytest

from tests.conftest import Programs
from tests.parts import needs_epoll

SOURCE = """
import sys, threading
import numpy as np
from telegrad import nn, rpc
from telegrad.parallel import Pipeline
from telegrad.transport.io import spin
from tests.counting import Cost

FEW, MANY, STEPS, BATCHES = 4, 20, 4, 60
cost = Cost()

class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(np.ones((), np.float32))

    def forward(self, x):
        return x * self.factor

class Last(Scale):
    def forward(self, x):
        return (x * self.factor).mean()

def begin():
    cost.begin()

def end():
    return cost.end()[:2]

def both_ends(pipe, inputs):
    # Returns functions and entries of one step, of both processes together.
    rpc.rpc_sync(1, begin)
    begin()
    for _ in range(STEPS):
        pipe.step(inputs)
    counts = np.add(end(), rpc.rpc_sync(1, end))
    return counts / STEPS

spin.SPIN_SECONDS = 0
threading.setprofile(cost.note)
agent = rpc.init_rpc()
if agent.rank == 0:
    pipes = {}
    for count in (FEW, MANY):
        pipe = Pipeline([(0, Scale), (1, Last)], schedule=SCHEDULE, num_microbatches=count)
        pipes[count] = pipe, np.ones((128 * count, 128), np.float32)
        for _ in range(3):
            pipe.step(pipes[count][1])
    sys.setprofile(cost.note)
    least = {count: np.full(2, np.inf) for count in pipes}
    for _ in range(BATCHES):
        for count, given in pipes.items():
            least[count] = np.minimum(least[count], both_ends(*given))
        crossing = (least[MANY] - least[FEW]) / (MANY - FEW)
        found = (*crossing, least[FEW][0] - FEW * crossing[0])
        if all(number <= most for number, most in zip(found, LIMITS)):
            break
    print(found, flush=True)
    assert all(number <= most for number, most in zip(found, LIMITS)), found
    print("counted", flush=True)
rpc.shutdown()
"""

# Of both processes together: functions of Python's and entries of the kernel for the forward and
# the backward of one micro-batch over one boundary of 64 KiB, of which the two stages and their
# backward are 150 functions; and functions for a step, whatever its number of micro-batches. They
# were 460, 12 and 1,450 before messages had heads at fixed places, rows were settled once and orders
# were plain values. A backward in halves ran 40 functions more when each half entered the block of
# skip connections.
LIMITS = {"1f1b": (320, 10, 1000), "zb-h1": (390, 11, 1000)}


@needs_epoll
@pytest.mark.parametrize("schedule", ["1f1b", pytest.param("zb-h1", marks=pytest.mark.long)])
@pytest.mark.long
def test_the_cost_of_a_crossing(programs: Programs, schedule: str) -> None:
    source = f"SCHEDULE, LIMITS = {schedule!r}, {LIMITS[schedule]}\n" + SOURCE
    driver, other = programs.ranks(programs.script(source), 2)
    assert "counted" in driver.wait()
    other.wait()
