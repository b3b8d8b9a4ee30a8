"""Where the trainers of one optimizer wait for each other: on the worker that made it.

    synchronous         trainer ── context, weight, options ──▶ conductor ── step ──▶ owners
                                ◀────────── result ──────────

    bounded staleness   trainer ── step ──▶ owners
                        trainer ── how many steps ──▶ conductor
                                ◀─── may go on ───────

No thread waits: each trainer's call is answered by a Future. A round is stepped in a thread of the
pool, outside of any trainer's call, so that it is nobody's to cancel.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, final

from telegrad.errors import WorkerLostError
from telegrad.parallel.owner_optimizer import StepRequest
from telegrad.parallel.owners import Owner, Owners, StepResult, left_until
from telegrad.parallel.trainer_rounds import Rounds, StepCounts
from telegrad.rpc import (
    Agent,
    Future,
    RRef,
    current_agent,
    current_served_call,
    expose,
    fresh_copy,
    functions,
    new_future,
)
from telegrad.types import WorkerInfo

__all__ = [
    "Conductor",
    "enter_round",
    "join_trainers",
    "leave_trainers",
    "wait_for_slowest",
]


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Share:
    """What a trainer adds to a round, and how it hears of the end of it.

    Attributes:
        context_id: Whose gradients.
        weight: What they are multiplied with.
        options: The options of all groups, as this trainer has them.
        ends: When its call is over, on the clock of `time.monotonic`.
        result: Completed at the end of the round.
    """

    context_id: int
    weight: float
    options: dict[int, dict[str, Any]]
    ends: float
    result: Future[StepResult] = field(repr=False)


@final
class Conductor:
    """Knows the trainers of one optimizer; all methods from any thread.

    Args:
        members: The owners.
        max_norm: See `Owners`.
        vote: See `Owners`.
        trainers: Who steps.
        staleness: By how many steps one may be ahead; None for rounds that all step together.
    """

    def __init__(
        self,
        members: Sequence[Owner],
        max_norm: float | None,
        vote: bool,
        trainers: Sequence[WorkerInfo],
        staleness: int | None,
    ) -> None:
        self._agent: Agent = current_agent()
        self._owners = Owners(members, max_norm, vote)
        self._lock = threading.Lock()  # guards both below; never held across a wait or a callback
        self._rounds: Rounds[WorkerInfo, _Share] = Rounds(trainers)
        self._counts: StepCounts[WorkerInfo, Future[None]] = StepCounts(trainers, staleness or 0)
        self._tickets = itertools.count(1)
        _hear_of_losses(self._agent, weakref.ref(self))
        for trainer in trainers:  # lost before it could be heard of
            if self._agent.lost(trainer) is not None:
                self.remove(trainer)

    def trainers(self) -> tuple[WorkerInfo, ...]:
        """Returns those that are waited for."""
        with self._lock:
            return self._rounds.trainers

    def add(self, trainer: WorkerInfo) -> int:
        """Lets a trainer take part; returns how many steps it counts as having made."""
        with self._lock:
            self._rounds.add(trainer)
            return self._counts.add(trainer)

    def remove(self, trainer: WorkerInfo) -> None:
        """Waits for a trainer no more."""
        with self._lock:
            left = self._rounds.remove(trainer), self._counts.remove(trainer)
        for waiting in (left[0] and left[0].result, left[1]):
            if waiting is not None:
                waiting.try_set_exception(
                    ValueError(f"worker {trainer.name!r} takes part in the steps no more")
                )
        self._go_on()

    def enter(
        self, context_id: int, weight: float, options: dict[int, dict[str, Any]]
    ) -> Future[StepResult]:
        """Takes a trainer's share of the round; returns what the round comes to."""
        trainer, ends = self._caller()
        result = self._new_future(f"a round of {len(self.trainers())} trainers")
        share = _Share(context_id, weight, options, ends, result)
        with self._lock:
            try:
                replaced = self._rounds.arrive(trainer, share)
            except KeyError:
                self._refuse(trainer)
        if replaced is not None:
            replaced.result.try_set_exception(_replaced(trainer))
        self._when_given_up(lambda: self._rounds.withdraw(trainer, share))
        self._go_on()
        return result

    def wait(self, steps: int) -> Future[None]:
        """Takes it that a trainer has made so many steps; returns what is done when it may go on."""
        trainer, _ = self._caller()
        ticket = self._new_future("the wait for the slowest trainer")
        with self._lock:
            try:
                replaced = self._counts.arrive(trainer, steps, ticket)
            except KeyError:
                self._refuse(trainer)
        if replaced is not None:
            replaced.try_set_exception(_replaced(trainer))
        self._when_given_up(lambda: self._counts.withdraw(trainer, ticket))
        self._go_on()
        return ticket

    def _go_on(self) -> None:
        """Lets go on who may."""
        with self._lock:
            shares, tickets = self._rounds.take(), self._counts.take()
        for ticket in tickets:
            ticket.try_set_result(None)
        if shares:
            self._agent.submit(self._step, shares)

    def _step(self, shares: list[_Share]) -> None:
        """Steps a round; in the pool."""
        ends = max(share.ends for share in shares)
        request = StepRequest(
            [(share.context_id, share.weight / len(shares)) for share in shares],
            shares[0].options,
            ticket=next(self._tickets),
        )
        outcome: StepResult | BaseException
        try:
            outcome = self._owners.step(request, left_until(ends))
        except BaseException as error:  # it is the trainers'
            outcome = error
        with self._lock:
            self._rounds.ended()
        for share in shares:
            if isinstance(outcome, StepResult):
                share.result.try_set_result(outcome)
            else:
                share.result.try_set_exception(fresh_copy(outcome))
        self._go_on()

    def _caller(self) -> tuple[WorkerInfo, float]:
        served = current_served_call()
        assert served is not None  # only the functions below lead here
        return served.caller, served.deadline

    def _when_given_up(self, withdraw: Callable[[], None]) -> None:
        """Takes a share or ticket back when its trainer's call is cancelled, or over."""

        def hook() -> None:
            with self._lock:
                withdraw()

        served = current_served_call()
        assert served is not None
        served.on_cancel(hook)

    def _new_future(self, label: str) -> Future[Any]:
        return new_future(self._agent.submit, label)

    def _refuse(self, trainer: WorkerInfo) -> NoReturn:
        names = ", ".join(each.name for each in self._rounds.trainers) or "none"
        raise ValueError(
            f"worker {trainer.name!r} is none of the optimizer's trainers ({names}); it joins them "
            "by optimizer.join()"
        )


def _hear_of_losses(agent: Agent, held: weakref.ref[Conductor]) -> None:
    """The agent keeps what it calls for good, and so not the conductor itself."""

    def on_lost(worker: WorkerInfo, error: WorkerLostError) -> None:
        conductor = held()
        if conductor is not None:
            conductor.remove(worker)

    agent.on_lost(on_lost)


def _replaced(trainer: WorkerInfo) -> ValueError:
    return ValueError(
        f"worker {trainer.name!r} began another step while it waited in this one; a worker is one "
        "trainer"
    )


# What trainers call.


@expose
@functions.async_execution
def enter_round(
    conductor: RRef[Conductor],
    context_id: int,
    weight: float,
    options: dict[int, dict[str, Any]],
) -> Future[StepResult]:
    """Adds a trainer's gradients to the round, and answers when that is stepped."""
    return conductor.local_value().enter(context_id, weight, options)


@expose
@functions.async_execution
def wait_for_slowest(conductor: RRef[Conductor], steps: int) -> Future[None]:
    """Answers when a trainer that has made so many steps may go on."""
    return conductor.local_value().wait(steps)


@expose
def join_trainers(conductor: RRef[Conductor]) -> int:
    """Makes the caller a trainer; returns how many steps it counts as having made."""
    return conductor.local_value().add(_caller())


@expose
def leave_trainers(conductor: RRef[Conductor]) -> None:
    """Has nobody wait for the caller any more."""
    conductor.local_value().remove(_caller())


def _caller() -> WorkerInfo:
    served = current_served_call()
    assert served is not None
    return served.caller
