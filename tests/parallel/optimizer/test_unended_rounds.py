"""Rounds of several trainers that one of them does not come to the end of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from telegrad import optim, rpc
from telegrad.dist_autograd.seams import Container
from telegrad.parallel import DistributedOptimizer, LossScale, StepResult
from telegrad.parallel.optimizer.owners import OwnerOptimizer, StepRequest
from telegrad.rpc.seams import current_agent
from telegrad.testing import Cluster
from telegrad.types import Array
from tests.parallel.optimizer.trained_parts import (
    XS,
    close,
    make_parts,
    mean_steps,
    rrefs_of,
    step,
    values,
)

CLUSTER_SIZE = 4
LONG = 40.0  # seconds for what no test waits for
TRAINERS = ("worker1", "worker2")


def round_of_two(options: dict[str, Any]) -> tuple[list[StepResult], list[Array]]:
    parts = make_parts(["worker0", "worker3"])
    optimizer = DistributedOptimizer(
        optim.SGD, rrefs_of(parts), lr=0.1, trainers=list(TRAINERS), **options
    )
    calls = [
        rpc.rpc_async(trainer, step, (optimizer, parts, x, LONG), timeout=LONG)
        for trainer, x in zip(TRAINERS, XS, strict=False)
    ]
    return rpc.wait_all(calls), values(parts)


@pytest.mark.parametrize("options", [{}, {"max_norm": 1e9}, {"loss_scale": LossScale(8.0)}])
def test_a_trainer_whose_loss_one_owner_hears_of_in_the_middle_of_a_round(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """With two calls to each owner all step alike; with one, the result says that they did not."""
    verb = "measure" if options else "step"
    asked = getattr(OwnerOptimizer, verb)

    def after_the_loss(self: OwnerOptimizer, plain: list[Any]) -> Any:
        request = StepRequest.of(plain)
        container = current_agent().attachments[Container]
        if container.agent.info.name == "worker3" and len(request.shares) == 2:
            container.release(request.shares[-1][0], container.agent.members.find("worker2"))
        return asked(self, plain)

    monkeypatch.setattr(OwnerOptimizer, verb, after_the_loss)
    results, found = cluster.call(0, round_of_two, options)
    if options:
        assert [(each.trainers, each.uneven) for each in results] == [(1, False)] * 2
        close(found, mean_steps(2, [XS[:1]], lr=0.1))
    else:
        assert [(each.trainers, each.uneven) for each in results] == [(2, True)] * 2
        close(found[:2], mean_steps(2, [XS[:2]], lr=0.1)[:2])
        assert not np.allclose(found[2], mean_steps(2, [XS[:2]], lr=0.1)[2])
