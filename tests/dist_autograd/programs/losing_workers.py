"""Runs a program on a worker that lives on, while another one is lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from telegrad import dist_autograd, rpc
from telegrad.autograd import Tensor, tensor
from telegrad.errors import WorkerLostError
from telegrad.testing.leaks import wait_until_gone
from tests.dist_autograd.programs.doom import LIMIT, Doom, doomed, lost_calls
from tests.dist_autograd.programs.random_programs import Gradients, Path, Program
from tests.dist_autograd.programs.running_programs import backward, gradients_of, run_calls_of

__all__ = ["Outcome", "run_until_lost"]


@dataclass
class Outcome:
    """What a program came to.

    Attributes:
        gradients: Of all workers that live.
        error: What backward raised, if it did.
        was_lost: Whether the worker was lost.
        in_time: Whether everybody knew so before backward.
        failed: The calls that ended with its loss.
    """

    gradients: Gradients
    error: BaseException | None
    was_lost: bool
    in_time: bool
    failed: set[Path]


def run_until_lost(program: Program, workers: int, lose_now: bool) -> Outcome:
    """Runs a program on a worker that lives on, while another one is to be lost.

    Args:
        program: Which.
        workers: How many there are at first.
        lose_now: Whether that one is lost between the calls and backward.
    """
    (doom,) = doomed
    error: BaseException | None = None
    with dist_autograd.context() as context_id:
        serial, values = run_calls_of(program)
        doom.calls_are_over()
        if lose_now:
            doom.die()
        if in_time := doom.reached.is_set():
            assert doom.done.wait(LIMIT)
            know_of_it(doom, workers)
        try:
            backward(program, context_id, values)
        except WorkerLostError as lost:
            error = lost
        was_lost = doom.reached.is_set()
        living = [rank for rank in range(workers) if not was_lost or rank != doom.rank]
        if was_lost:
            know_of_it(doom, workers)
        futures = {rank: rpc.rpc_async(rank, gradients_of, (context_id,)) for rank in living}
        found = {
            (rank, i): gradient
            for rank, future in futures.items()
            for i, gradient in future.wait().items()
        }
    after_the_loss(living)
    failed_calls = {path[1:] for path in lost_calls if path[0] == serial}
    return Outcome(found, error, was_lost, in_time, failed_calls)


def know_of_it(doom: Doom, workers: int) -> None:
    """Returns when each worker that lives has heard of the loss."""
    others = [rank for rank in range(workers) if rank != doom.rank]
    rpc.wait_all([rpc.rpc_async(rank, wait_for_loss, (doom.rank,)) for rank in others])


def wait_for_loss(rank: int) -> None:
    wait_until_gone(
        "workers", lambda: [info.name for info in rpc.get_worker_infos() if info.rank == rank]
    )


def after_the_loss(living: Sequence[int]) -> None:
    """The next step of those who live is right."""
    x = tensor(np.ones(3), requires_grad=True)
    with dist_autograd.context() as context_id:
        loss = (through(x, list(living)) * 3.0).sum()
        dist_autograd.backward(context_id, [loss])
        found = dist_autograd.get_gradients(context_id)[x].data
    np.testing.assert_allclose(found, np.full(3, 3.0 * 2.0 ** len(living)))


def through(x: Tensor, living: list[int]) -> Tensor:
    return rpc.rpc_sync(living[0], through, (x * 2.0, living[1:])) if living else x
