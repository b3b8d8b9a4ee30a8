"""Pains of users: contexts that outlive a worker, and results that the loss never used."""

from __future__ import annotations

import numpy as np

import telegrad as tg
from telegrad import dist_autograd, rpc
from telegrad.errors import WorkerLostError
from telegrad.testing import Cluster, held_references
from telegrad.testing.leaks import wait_until_gone
from tests.pains.remote_code import outcome


def double(x: tg.Tensor) -> tg.Tensor:
    return x * 2.0


def leave_a_context(kill: tuple[Cluster, int]) -> str:
    """Loses a worker between the forward pass and the backward one."""
    x = tg.tensor(np.arange(3.0), requires_grad=True)
    with dist_autograd.context() as context_id:
        partly = rpc.rpc_sync("worker1", double, (x,))
        loss = rpc.rpc_sync("worker2", double, (partly,)).sum()
        cluster, rank = kill
        cluster.kill(rank)
        return outcome(lambda: dist_autograd.backward(context_id, [loss]))


def test_pain_14_contexts_outlive_a_lost_worker() -> None:
    """The pass ends with the loss, for all; nobody keeps the context."""
    with Cluster(3) as cluster:
        found = cluster.call(0, leave_a_context, (cluster, 2))
        assert found.startswith(WorkerLostError.__name__)

        def contexts() -> list[str]:
            held = {rank: cluster.call(rank, held_references) for rank in cluster.living}
            return [f"worker{rank}" for rank in held if held[rank]["autograd contexts"]]

        wait_until_gone("contexts", contexts)


def use_one_of_two() -> list[float]:
    x = tg.tensor(np.arange(3.0), requires_grad=True)
    with dist_autograd.context() as context_id:
        used = rpc.rpc_sync("worker1", double, (x,))
        rpc.rpc_sync("worker1", double, (used,))  # in the context, and in no loss
        rpc.rpc_sync("worker2", double, (x,))
        dist_autograd.backward(context_id, [used.sum()])
        return [float(each) for each in dist_autograd.get_gradients(context_id)[x].data]


def test_pain_15_a_result_that_the_loss_does_not_use_hangs_backward() -> None:
    with Cluster(3) as cluster:
        assert cluster.call(0, use_one_of_two) == [2.0, 2.0, 2.0]
