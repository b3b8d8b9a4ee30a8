"""The interface of a cluster's workers, which run functions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any


class Workers(ABC):
    """The workers of one cluster, by rank.

    All methods are called from the thread that made the cluster.
    """

    @abstractmethod
    def start(self) -> None:
        """Starts all workers and returns when the job is complete."""

    @abstractmethod
    def submit(self, rank: int, func: Callable[..., Any], args: Sequence[Any]) -> Future[Any]:
        """Runs `func(*args)` on a worker, in a thread of its own."""

    @abstractmethod
    def kill(self, rank: int) -> None:
        """Ends a worker at once, without a goodbye."""

    @abstractmethod
    def close(self, *, graceful: bool, timeout: float) -> None:
        """Ends all workers within the timeout; graceful lets each serve until all are done."""
