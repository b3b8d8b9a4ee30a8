"""The gradients that wait at the stages of a pipeline, and the optimizer that uses them up."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, final

from telegrad.dist_autograd.seams import (
    Ambient,
    Container,
    ambient_context,
    enter_ambient,
    leave_ambient,
)
from telegrad.errors import InvalidUseError, PipelineError, WorkerLostError
from telegrad.optim import LossScale
from telegrad.parallel.optimizer.dist_optimizer import DistributedOptimizer
from telegrad.parallel.optimizer.owners import StepResult, step_failure
from telegrad.rpc.seams import AgentCore, Tick, current_agent

LOOK_SECONDS = 1.0  # between two looks for a pipeline that was dropped while gradients wait


@final
class WaitingGradients:
    """The autograd context in which the gradients of a pipeline wait, at the stages.

    It is that of the block `with dist_autograd.context()`, if the code runs in one; else one that
    the first step opens and that ends when an optimizer has used the gradients up, or soon after
    the pipeline and its optimizers were dropped.
    """

    def __init__(self) -> None:
        self._own = _Own()
        agent, dropped, own = current_agent(), weakref.ref(self), self._own
        self._tick = Tick(
            agent.deadlines.after,
            LOOK_SECONDS,
            lambda: own.release_on(agent) if dropped() is None else None,
            lambda: own.context_id is not None,
        )

    @contextmanager
    def entered(self, *, opens: bool) -> Iterator[int]:
        """Enters the context, for a block that makes calls.

        Args:
            opens: True to open one where there is none.

        Raises:
            InvalidUseError: There is none.
        """
        ambient = ambient_context()
        if ambient is not None:
            yield ambient
            return
        own = self._own
        opened = own.context_id is None
        if own.context_id is None:
            if not opens:
                raise InvalidUseError(
                    "no gradients wait at the stages of this pipeline: call step() first, and use "
                    "each step's gradients once"
                )
            own.context_id = current_agent().attachments[Container].create()
            self._tick.start()
        entered = Ambient(own.context_id)
        token = enter_ambient(entered)
        try:
            yield own.context_id
        except BaseException:
            if opened:  # a failed step leaves nothing
                self.drop()
            raise
        finally:
            leave_ambient(entered, token)

    def drop(self) -> None:
        """Drops the gradients, unless they are of a block's context."""
        if (context_id := self._own.take()) is not None:
            current_agent().attachments[Container].release(context_id)


@final
class _Own:
    """The context that a pipeline has opened for its gradients; outlives the pipeline."""

    def __init__(self) -> None:
        self.context_id: int | None = None

    def take(self) -> int | None:
        """Returns the context, which its caller releases."""
        context_id, self.context_id = self.context_id, None
        return context_id

    def release_on(self, agent: AgentCore) -> None:
        """Releases the context in a thread of the pool, as it may keep objects of the user."""
        if (context_id := self.take()) is not None:
            agent.pool.submit(partial(agent.attachments[Container].release, context_id))


@final
class PipelineOptimizer:
    """The optimizer of a pipeline, from `Pipeline.optimizer`: it steps each stage where it lives.

    Schedulers of `telegrad.optim` take it.

    Args:
        make: Makes the optimizer of all parameters, where they live now.
        waiting: The gradients of the pipeline.
        stages: Returns the first stage of each worker, by name.
        loss_scale: The loss scale, if there is one.
        after: Called after each step, and after a state was loaded.

    Attributes:
        param_groups: Dicts with the options of each group.
        loss_scale: The argument of that name, by which `Pipeline.step` multiplies each loss.

    Example:
        >>> import numpy as np
        >>> from telegrad import nn, optim, parallel, rpc
        >>> def mean(output):
        ...     return output.mean()
        >>> with rpc.init_rpc("a"):
        ...     pipe = parallel.Pipeline([("a", nn.Linear, (3, 1))], num_microbatches=2, loss=mean)
        ...     optimizer = pipe.optimizer(optim.SGD, lr=1.0, max_norm=0.5)
        ...     before = pipe.step(np.ones((4, 3), np.float32))
        ...     norm = optimizer.step().norm
        ...     round(norm, 3), before > pipe.step(np.ones((4, 3), np.float32))
        (2.0, True)
    """

    def __init__(
        self,
        make: Callable[[], DistributedOptimizer],
        waiting: WaitingGradients,
        stages: Callable[[], Mapping[str, int]],
        loss_scale: LossScale | None,
        after: Callable[[], None],
    ) -> None:
        self._make = make
        self._after = after
        self._made: DistributedOptimizer | None = None
        self._waiting = waiting
        self._stages = stages
        self.loss_scale = loss_scale

    @property
    def made(self) -> DistributedOptimizer:
        """For the pipeline: the optimizer of all parameters, made when it is first used."""
        if self._made is None:
            self._made = self._make()
        return self._made

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The options of each group; a step uses their present values."""
        return self.made.param_groups

    @property
    def defaults(self) -> dict[str, Any]:
        """The options of groups that state none."""
        return self.made.defaults

    def step(self, timeout: float | None = None) -> StepResult:
        """Steps all stages with the gradients that wait there, and uses them up.

        Inside `with dist_autograd.context()` the gradients are the context's, and stay.

        Args:
            timeout: Seconds above 0; None for `RpcOptions.timeout`.

        Returns:
            The result, as of `DistributedOptimizer.step`.

        Raises:
            InvalidUseError: No gradients wait.
            PipelineError: A stage failed, and some stages may have stepped: load a state, or
                replace the stage.
            BlockingCallError: On an event loop that telegrad runs.
        """
        try:
            with self._waiting.entered(opens=False) as context_id:
                result = self.made.step(context_id, timeout)
        except Exception as error:
            failure = step_failure(error)
            if failure is None:
                raise
            worker = next(iter((*failure.failed, *failure.unknown)), "")
            words = f"failed in the optimizer; {failure}"
            raise self._failure(error, worker, words, "optimizer") from error
        finally:
            self._waiting.drop()
        self._after()
        return result

    def remake(self, state: Mapping[str, Any] | None) -> None:
        """For the pipeline: makes it again where the parameters live now, with a saved state.

        Without one, as it was when it was made.
        """
        self._made = self._make()
        if state is not None:
            self._made.load_state_dict(state)

    def zero_grad(self) -> None:
        """Drops the gradients that wait."""
        self._waiting.drop()

    def state_dict(self) -> dict[str, Any]:
        """Returns the state at all stages, in the layout of `optim.Optimizer` for the whole model.

        Raises:
            PipelineError: A stage is lost.
        """
        try:
            return self.made.state_dict()
        except WorkerLostError as error:
            words = "is lost in the state of the optimizer"
            raise self._failure(error, error.worker, words, "state") from error

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores a state, of this class or of an `optim.Optimizer` of the whole model."""
        self.made.load_state_dict(state_dict)
        self._after()

    def _failure(self, error: Exception, worker: str, words: str, phase: str) -> PipelineError:
        stage = self._stages().get(worker, -1)
        return PipelineError(
            f"stage {stage} on worker {worker!r} {words}: {type(error).__name__}: {error}",
            stage=stage,
            worker=worker,
            phase=phase,
        )

    def __repr__(self) -> str:
        return f"<PipelineOptimizer of {self._made or 'a model that is not split yet'!r}>"
