"""All owners of a distributed optimizer's parameters, asked at once.

    plain step                    step ──▶ every owner                     one call per owner
    clipped, or loss scaled       measure ──▶ every owner, then step       two calls per owner

The second form knows the norm of the whole gradient, and whether all of it is finite, before any
owner steps. It also knows which trainers of a round were lost by then: their gradients, which some
owners may still have, are measured out of it by a further call, so that all owners step alike.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from telegrad.errors import (
    BlockingCallError,
    CallTimeoutError,
    WaitCycleError,
    WorkerLostError,
)
from telegrad.parallel.owner_optimizer import OwnerOptimizer, StepRequest
from telegrad.rpc import Future, RRef, current_agent, fresh_copy, remote_traceback
from telegrad.types import WorkerInfo

__all__ = ["Owner", "Owners", "StepFailure", "StepResult", "left_until", "step_failure"]

_ATTRIBUTE = "telegrad_step_failure"  # travels with the exception

# So that the call itself says that the time is over, in its words.
LEAST_SECONDS = 1e-3


@final
@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step of a distributed optimizer came to.

    Attributes:
        stepped: Whether the owners stepped. They do not where a loss is scaled and a gradient of
            any of them is not finite.
        norm: Of the whole gradient, over all owners, before it was clipped; None where neither
            `max_norm` nor a loss scale asks for it.
        trainers: How many trainers' gradients were averaged.
        uneven: Whether one of them was lost, or has left its context, while the round was stepped:
            its gradients may count at some owners alone. Never where a norm was asked for.
    """

    stepped: bool
    norm: float | None = None
    trainers: int = 1
    uneven: bool = False


@final
@dataclass(frozen=True, slots=True)
class StepFailure:
    """How far a failed step came, by the names of owners.

    Attributes:
        stepped: Those that have stepped.
        failed: Those that have raised. One whose `update` did may have stepped some parameters.
        unknown: Those that are lost or did not answer in time: they may have stepped or not.
    """

    stepped: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    def __str__(self) -> str:
        words = []
        for names, what in (
            (self.stepped, "stepped"),
            (self.failed, "did not step"),
            (self.unknown, "may have stepped or not"),
        ):
            words += [f"{', '.join(names)} {what}"] if names else []
        return "; ".join(words) or "no owner stepped"


def step_failure(error: BaseException) -> StepFailure | None:
    """Returns which owners stepped when `DistributedOptimizer.step` raised.

    Args:
        error: What it raised, on any trainer.

    Returns:
        None for an error of something else.

    >>> step_failure(ValueError("of something else")) is None
    True
    """
    failure = getattr(error, _ATTRIBUTE, None)
    return failure if isinstance(failure, StepFailure) else None


@final
@dataclass(frozen=True, slots=True)
class Owner:
    """One owner.

    Attributes:
        worker: Which worker.
        rref: Its part of the optimizer.
        groups: The numbers of the groups that it has parameters of.
    """

    worker: WorkerInfo
    rref: RRef[OwnerOptimizer]
    groups: list[int] = field(default_factory=list)


@final
class Owners:
    """The owners, in the order of their first parameters.

    Args:
        members: The owners.
        max_norm: What the norm of the whole gradient is clipped to; None for no clipping.
        vote: Whether nobody steps where a gradient of any owner is not finite.
    """

    def __init__(self, members: Sequence[Owner], max_norm: float | None, vote: bool) -> None:
        self.members = list(members)
        self.max_norm = max_norm
        self.vote = vote

    def step(self, request: StepRequest, timeout: float) -> StepResult:
        """Steps every owner; see `DistributedOptimizer.step`.

        Args:
            request: With the options of all groups.
            timeout: Seconds for all of it.

        Raises:
            Exception: The first error of an owner, in the order of the owners.
        """
        ends = time.monotonic() + timeout
        if self.max_norm is None and not self.vote:
            over = self._ask("step", request, timeout, steps=True)
            return StepResult(stepped=True, trainers=len(request.shares), uneven=any(over))
        request, norm = self._measure(request, ends)
        trainers = len(request.shares)
        if self.vote and not math.isfinite(norm):
            return StepResult(stepped=False, norm=norm, trainers=trainers)
        factor = 1.0 if self.max_norm is None else self.max_norm / (norm + 1e-6)
        if not factor >= 1:  # as `clip_grad_norm_` has it, for what is no number too
            request = dataclasses.replace(request, factor=factor)
        self._ask("step", request, left_until(ends), steps=True)
        return StepResult(stepped=True, norm=norm, trainers=trainers)

    def _measure(self, request: StepRequest, ends: float) -> tuple[StepRequest, float]:
        """Returns the norm of a request, without the contexts that are over at some owner."""
        while True:
            found = self._ask("measure", request, left_until(ends), steps=False)
            over = {context_id for _, contexts in found for context_id in contexts}
            if not over:
                return request, math.hypot(*(norm for norm, _ in found))
            kept = [share for share in request.shares if share[0] not in over]
            more = len(request.shares) / max(len(kept), 1)
            shares = [(context_id, weight * more) for context_id, weight in kept]
            request = dataclasses.replace(request, shares=shares)

    def ask_all(
        self,
        method: str,
        arguments: Callable[[Owner], Sequence[Any]],
        timeout: float | None,
    ) -> list[Any]:
        """Calls a method of each owner's part, all at once, and waits for every answer.

        Args:
            method: Of `OwnerOptimizer`.
            arguments: What an owner gets.
            timeout: Seconds for each call.

        Returns:
            The answers, in the order of the owners.

        Raises:
            Exception: The first error, in that order; notes tell of the others.
        """
        outcomes = self._outcomes(method, arguments, timeout)
        self._raise_first(outcomes, None)
        return [value for value, _, _ in outcomes]

    def _ask(self, method: str, request: StepRequest, timeout: float, *, steps: bool) -> list[Any]:
        def arguments(owner: Owner) -> Sequence[Any]:
            return (request.plain(owner.groups),)

        values = []
        for value, error, _ in (outcomes := self._outcomes(method, arguments, timeout)):
            if error is not None:
                self._raise_first(outcomes, self._failure(outcomes) if steps else StepFailure())
            values.append(value)
        return values

    def _outcomes(
        self,
        method: str,
        arguments: Callable[[Owner], Sequence[Any]],
        timeout: float | None,
    ) -> list[tuple[Any, Exception | None, bool]]:
        """Returns value, error, and whether the call was sent, for each owner."""
        calls: list[Future[Any] | Exception] = []
        agent = current_agent()
        for owner in self.members:
            lost = agent.lost(owner.worker)
            if lost is not None:  # the others step all the same
                calls.append(_copy(lost))
                continue
            # Of the reference itself: as an argument it would be counted, and its owner answer that.
            part = owner.rref.rpc_async(timeout=timeout)
            try:
                calls.append(getattr(part, method)(*arguments(owner)))
            except Exception as error:
                calls.append(error)
        return [_outcome(call) for call in calls]

    def _failure(self, outcomes: Sequence[tuple[Any, Exception | None, bool]]) -> StepFailure:
        stepped, failed, unknown = [], [], []
        for owner, (_, error, sent) in zip(self.members, outcomes, strict=True):
            if error is None:
                stepped.append(owner.worker.name)
            elif sent and isinstance(error, CallTimeoutError | WorkerLostError):
                unknown.append(owner.worker.name)
            else:
                failed.append(owner.worker.name)
        return StepFailure(tuple(stepped), tuple(failed), tuple(unknown))

    def _raise_first(
        self,
        outcomes: Sequence[tuple[Any, Exception | None, bool]],
        failure: StepFailure | None,
    ) -> None:
        names = [owner.worker.name for owner in self.members]
        failed = [
            (name, error)
            for name, (_, error, _) in zip(names, outcomes, strict=True)
            if error is not None
        ]
        if not failed:
            return
        name, first = failed[0]
        first.add_note(f"raised by the optimizer on worker {name!r}")
        for other, error in failed[1:]:
            first.add_note(f"worker {other!r} failed too: {type(error).__name__}: {error}")
        if failure is not None:
            first.add_note(f"of the owners {failure}")
            vars(first)[_ATTRIBUTE] = failure
        raise first


def left_until(ends: float) -> float:
    """Returns the seconds until `ends`, on the clock of `time.monotonic`; a few at the least."""
    return max(ends - time.monotonic(), LEAST_SECONDS)


def _copy(error: WorkerLostError) -> Exception:
    """Returns what notes may be added to; the agent's own is raised by others, too."""
    copied = fresh_copy(error)
    return copied if isinstance(copied, Exception) else error


def _outcome(call: Any) -> tuple[Any, Exception | None, bool]:
    if not isinstance(call, Future):
        return None, call, False
    try:
        return call.wait(math.inf), None, True  # each of them ends in time
    except (BlockingCallError, WaitCycleError) as error:
        if remote_traceback(error) is None:
            raise  # of this very wait: it says nothing of the owner
        return None, error, True
    except Exception as error:
        return None, error, True
