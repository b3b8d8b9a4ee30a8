"""The verbs on an agent given by name: those of `telegrad.rpc`, with that agent as the ambient one.

There is one implementation of each verb, in a module of its own, and it uses the ambient agent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Self, TypeVar

from telegrad.rpc import api
from telegrad.rpc.stream.stream import stream, stream_verb

if TYPE_CHECKING:
    from telegrad.rpc.future.future import Future
    from telegrad.rpc.rref.rref import RRef
    from telegrad.rpc.stream.stream import Stream
    from telegrad.types import WorkerInfo

__all__ = ["AgentVerbs"]

T = TypeVar("T")


class AgentVerbs(ABC):
    """What a program does with an agent that it holds as an object; the agent inherits it.

    Each method is the function of `telegrad.rpc` of its name, called with this agent as the
    ambient one: the same arguments, values and errors. For the other verbs (`gather`, `publish`,
    ...) enter `as_current()`. An agent that was shut down raises
    NotInitializedError, one of another process AgentForkedError.
    """

    @abstractmethod
    def as_current(self) -> AbstractContextManager[Self]:
        """Returns a block inside which this agent is the ambient one."""

    @api.sync_verb
    def rpc_sync(
        self,
        to: str | int | WorkerInfo,
        func: Callable[..., Any],
        args: tuple[Any, ...] | list[Any] | None = (),
        kwargs: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        retry: int = 0,
    ) -> Any:
        """Calls a function on a worker and waits for its value; see `telegrad.rpc.rpc_sync`."""
        with self.as_current():
            return api.rpc_sync(to, func, args, kwargs, timeout, retry)

    @api.async_verb
    def rpc_async(
        self,
        to: str | int | WorkerInfo,
        func: Callable[..., Any],
        args: tuple[Any, ...] | list[Any] | None = (),
        kwargs: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        retry: int = 0,
    ) -> Future[Any]:
        """Calls a function and returns the future of its value; see `telegrad.rpc.rpc_async`."""
        with self.as_current():
            return api.rpc_async(to, func, args, kwargs, timeout, retry)

    @api.remote_verb
    def remote(
        self,
        to: str | int | WorkerInfo,
        func: Callable[..., Any],
        args: tuple[Any, ...] | list[Any] | None = (),
        kwargs: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> RRef[Any]:
        """Calls a function on a worker, where its value stays; see `telegrad.rpc.remote`."""
        with self.as_current():
            return api.remote(to, func, args, kwargs, timeout)

    @stream_verb
    def stream(
        self,
        to: str | int | WorkerInfo,
        func: Callable[..., Any],
        args: tuple[Any, ...] | list[Any] | None = (),
        kwargs: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Stream[Any]:
        """Runs a generator function on a worker and reads its items; see `telegrad.rpc.stream.stream`."""
        with self.as_current():
            return stream(to, func, args, kwargs, timeout)

    def get_worker_info(self, to: str | int | WorkerInfo | None = None) -> WorkerInfo:
        """Returns a worker of this agent's job, or this one; see `telegrad.rpc.get_worker_info`."""
        with self.as_current():
            return api.get_worker_info(to)

    def get_worker_infos(self) -> list[WorkerInfo]:
        """Returns the living workers of this agent's job by rank, this one included."""
        with self.as_current():
            return api.get_worker_infos()
