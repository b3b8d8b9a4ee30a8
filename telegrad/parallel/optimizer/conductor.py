"""The conductor: the object at which an optimizer's trainers wait; lives where it was made.

    synchronous         trainer ── context, weight, options ──▶ conductor ── step ──▶ owners
                                ◀────────── result ──────────

    bounded staleness   trainer ── step ──▶ owners
                        trainer ── number of steps ──▶ conductor
                                ◀─── may go on ───────

No thread waits: each trainer's call is answered by a Future. A thread of the pool steps a round
outside of any trainer's call, so that no trainer can cancel it.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from telegrad.critical import critical
from telegrad.errors import CallTimeoutError, WorkerLostError
from telegrad.parallel.optimizer.owners import Owners, StepRequest, StepResult, left_until
from telegrad.parallel.optimizer.rounds import Rounds, StepCounts
from telegrad.rpc import Future, expose, functions
from telegrad.rpc.seams import AgentCore, current_agent, current_served_call, fresh_copy, new_future
from telegrad.types import WorkerInfo

# Left to a trainer's call, if possible, when its wait here ends: enough for an answer that names
# the missing trainers.
ANSWER_SECONDS = 1.0


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Share:
    """A trainer's contribution to a round, and the Future that answers the trainer.

    Attributes:
        context_id: The context that has the gradients.
        weight: The factor for the gradients.
        options: The options of all groups, as this trainer has them.
        ends: The trainer's deadline, on the clock of `time.monotonic`.
        result: Completed at the end of the round.
    """

    context_id: int
    weight: float
    options: dict[int, dict[str, Any]]
    ends: float
    result: Future[StepResult] = field(repr=False)


@expose
@final
class Conductor:
    """Coordinates the trainers of one optimizer; trainers call its public methods.

    Args:
        owners: The owners.
        trainers: The workers that step.
        staleness: The number of steps that one may be ahead; None for rounds that all step
            together.
    """

    def __init__(
        self,
        owners: Owners,
        trainers: Sequence[WorkerInfo],
        staleness: int | None,
    ) -> None:
        self._agent: AgentCore = current_agent()
        self._owners = owners
        self._lock = threading.Lock()  # guards both below; never held across a wait or a callback
        self._rounds: Rounds[WorkerInfo, _Share] = Rounds(trainers)
        self._counts: StepCounts[WorkerInfo, Future[None]] = StepCounts(trainers, staleness or 0)
        self._tickets = itertools.count(1)
        _hear_of_losses(self._agent, weakref.ref(self))
        for trainer in trainers:  # those lost before the callback was registered
            if self._agent.members.lost(trainer) is not None:
                self._remove(trainer)

    def join(self) -> int:
        """Makes the caller a trainer; returns the number of steps it counts as having made."""
        trainer, _ = self._caller()
        with critical.section, self._lock:
            self._rounds.add(trainer)
            return self._counts.add(trainer)

    def leave(self) -> None:
        """Removes the caller from the trainers: nobody waits for it any more."""
        trainer, _ = self._caller()
        self._remove(trainer)

    @functions.async_execution
    def enter(
        self, context_id: int, weight: float, options: dict[int, dict[str, Any]], limit: float
    ) -> Future[StepResult]:
        """Takes the caller's share of the round; answers when that is stepped, or at a timeout.

        Args:
            context_id: The context that has the gradients.
            weight: The factor for the gradients.
            options: The options of all groups, as the caller has them.
            limit: Seconds that the caller waits.
        """
        trainer, ends = self._caller(limit)
        result = self._new_future(f"a round of {len(self._rounds.trainers)} trainers")
        share = _Share(context_id, weight, options, ends, result)

        def withdraw() -> tuple[WorkerInfo, ...] | None:
            missing = self._rounds.awaited()
            return missing if self._rounds.withdraw(trainer, share) else None

        def arrive() -> Future[StepResult] | None:
            replaced = self._rounds.arrive(trainer, share)
            return replaced and replaced.result

        self._arrive(trainer, arrive)
        self._end_in_time(trainer, ends, result, withdraw, "the round")
        self._go_on()
        return result

    @functions.async_execution
    def wait(self, steps: int, limit: float) -> Future[None]:
        """Answers when the caller, which has made `steps` steps, may go on; or at a timeout."""
        trainer, ends = self._caller(limit)
        ticket = self._new_future("the wait for the slowest trainer")

        def withdraw() -> tuple[WorkerInfo, ...] | None:
            missing = self._counts.awaited(trainer)
            return missing if self._counts.withdraw(trainer, ticket) else None

        self._arrive(trainer, lambda: self._counts.arrive(trainer, steps, ticket))
        self._end_in_time(trainer, ends, ticket, withdraw, "the bound of its steps")
        self._go_on()
        return ticket

    def _remove(self, trainer: WorkerInfo) -> None:
        """Removes a trainer, for which nobody waits any more."""
        with critical.section, self._lock:
            left = self._rounds.remove(trainer), self._counts.remove(trainer)
        for waiting in (left[0] and left[0].result, left[1]):
            if waiting is not None:
                waiting.try_set_exception(
                    ValueError(f"worker {trainer.name!r} was removed from the optimizer's trainers")
                )
        self._go_on()

    def _go_on(self) -> None:
        """Releases all trainers that may go on, and steps a round that is complete."""
        with critical.section, self._lock:
            shares, tickets = self._rounds.take(), self._counts.take()
        for ticket in tickets:
            ticket.try_set_result(None)
        if shares:
            self._agent.pool.submit(self._step, shares)

    def _step(self, shares: list[_Share]) -> None:
        """Steps a round; runs in the pool."""
        ends = max(share.ends for share in shares)
        request = StepRequest(
            [(share.context_id, share.weight / len(shares)) for share in shares],
            shares[0].options,
            ticket=next(self._tickets),
        )
        outcome: StepResult | BaseException
        try:
            outcome = self._owners.step(request, left_until(ends))
        except BaseException as error:  # raised at the trainers
            outcome = error
        with critical.section, self._lock:
            self._rounds.ended()
        for share in shares:
            if isinstance(outcome, StepResult):
                share.result.try_set_result(outcome)
            else:
                share.result.try_set_exception(fresh_copy(outcome))
        self._go_on()

    def _caller(self, limit: float = math.inf) -> tuple[WorkerInfo, float]:
        served = current_served_call()
        assert served is not None  # it is called by messages only, even by its own worker
        return served.caller, min(served.deadline, time.monotonic() + limit)

    def _end_in_time(
        self,
        trainer: WorkerInfo,
        ends: float,
        waiting: Future[Any],
        withdraw: Callable[[], tuple[WorkerInfo, ...] | None],
        what: str,
    ) -> None:
        """Withdraws a share or ticket when its trainer's call is cancelled or times out.

        Args:
            trainer: The trainer.
            ends: The deadline.
            waiting: The Future of the wait; at the deadline it fails with the missing trainers.
            withdraw: Withdraws the share or ticket; returns the missing trainers, or None if it was
                not waiting any more.
            what: The object of the wait, for the message.
        """
        began = time.monotonic()

        def take_back() -> tuple[WorkerInfo, ...] | None:
            with critical.section, self._lock:
                return withdraw()

        def cancelled() -> None:
            take_back()

        def expire() -> None:
            missing = take_back()
            if missing is None:
                return  # it goes on, or its round is being stepped, which has a deadline of its own
            names = ", ".join(each.name for each in missing) or "the round before to be stepped"
            elapsed = time.monotonic() - began
            error = CallTimeoutError(
                f"{what} was not complete after {elapsed:.3g} s: worker {trainer.name!r} waited "
                f"for {names}",
                worker=", ".join(each.name for each in missing),
                function="DistributedOptimizer.step",
                phase="waiting",
                elapsed=elapsed,
            )
            waiting.try_set_exception(error)

        served = current_served_call()
        assert served is not None
        served.on_cancel(cancelled)
        if ends != math.inf:
            agent = self._agent
            forget = agent.deadlines.after(ends - began, lambda: agent.pool.submit(expire))
            waiting._call_when_done(forget.cancel)

    def _new_future(self, label: str) -> Future[Any]:
        return new_future(self._agent.pool.submit, label)

    def _arrive(self, trainer: WorkerInfo, arrive: Callable[[], Future[Any] | None]) -> None:
        """Notes that a trainer waits; an earlier wait of it, which `arrive` returns, fails."""
        with critical.section, self._lock:
            try:
                replaced = arrive()
            except KeyError:
                names = ", ".join(each.name for each in self._rounds.trainers) or "none"
                raise ValueError(
                    f"worker {trainer.name!r} is not one of the optimizer's trainers ({names}); it "
                    "joins them by optimizer.join()"
                ) from None
        if replaced is not None:
            replaced.try_set_exception(
                ValueError(
                    f"worker {trainer.name!r} began another step while it waited in this one; a "
                    "worker is one trainer"
                )
            )


def _hear_of_losses(agent: AgentCore, held: weakref.ref[Conductor]) -> None:
    """Registers a callback that holds the conductor weakly, as an agent keeps callbacks."""

    def on_lost(worker: WorkerInfo, error: WorkerLostError) -> None:
        conductor = held()
        if conductor is not None:
            conductor._remove(worker)

    agent.inbox.on_loss(on_lost)
