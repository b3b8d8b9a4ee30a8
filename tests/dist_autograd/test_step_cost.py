"""How many Python functions run for one step, at both ends: its cost where time cannot be told.

Right after a thread was woken each of them takes three times what it takes in a loop.
"""

from __future__ import annotations

import threading
from collections import Counter

import numpy as np

from telegrad import dist_autograd, optim, rpc, tensor
from telegrad.parallel import DistributedOptimizer
from telegrad.testing import Cluster
from tests.dist_autograd.layers import Linear

STEPS = 12
# Two calls with a Tensor each way, backward through both, a step of SGD; of two workers together.
# 1,344 were counted last. It was 3,300 when each call judged its method anew, and a message of a
# pass was two envelopes; and 2,350 when each gradient that crossed passed a dozen small functions
# at either end.
MOST = 1480


def test_the_functions_of_a_step(called: Counter[tuple[int, str]]) -> None:
    costs: list[Counter[tuple[int, str]]] = []

    def steps() -> None:
        layer = rpc.remote("worker1", Linear)
        optimizer = DistributedOptimizer(optim.SGD, [layer.rpc_sync().parameter()], lr=0.01)
        x = tensor(np.ones((2, 3)), requires_grad=True)
        for _ in range(STEPS):
            called.clear()
            with dist_autograd.context() as context_id:
                y = layer.rpc_sync().forward(layer.rpc_sync().forward(x))
                dist_autograd.backward(context_id, [(y * y).mean()])
                assert optimizer.step(context_id).stepped
            costs.append(called.copy())

    with Cluster(2) as cluster:
        cluster.call(0, steps)
        loops = {each.ident for each in threading.enumerate() if each.name == "telegrad-loop"}
    for each in costs:  # loops have clocks, too
        for thread, what in [place for place in each if place[0] in loops]:
            del each[thread, what]
    least = min(costs, key=Counter.total)
    assert least.total() <= MOST, "\n".join(f"{n} {what}" for what, n in least.most_common(60))
