"""Ranks whose reductions are done when the last one has started them, and their models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from telegrad.autograd import Tensor
from telegrad.errors import CollectiveMismatchError
from telegrad.parallel.bucket import Slot
from telegrad.parallel.reducer import Gathered, Trained
from telegrad.rpc import Future
from telegrad.types import Array

GATHER = "gather: "


class FakeGroup:
    """One rank's end; keeps what it started."""

    def __init__(self, job: FakeJob, rank: int) -> None:
        self.job = job
        self.rank = rank
        self.labels: list[str] = []
        self.started: list[tuple[Array, Future[Any]]] = []
        self.sizes: list[int] = []

    @property
    def reductions(self) -> list[str]:
        """The labels of its reductions."""
        return [label for label in self.labels if not label.startswith(GATHER)]

    @property
    def process_group(self) -> Any:
        return self

    @property
    def size(self) -> int:
        return len(self.job.groups)

    def start(self, array: Array, label: str) -> Future[None]:
        return self._begin(array, label)

    def gather(self, array: Array, label: str) -> Gathered:
        return self._begin(array, f"{GATHER}{label}")

    def _begin(self, array: Array, label: str) -> Future[Any]:
        if self.job.aborted is not None:
            raise self.job.aborted
        future: Future[Any] = Future()
        self.labels.append(label)
        self.sizes.append(array.size)
        self.started.append((array, future))
        self.job.reduce()
        return future

    def memory(self, nbytes: int) -> Array:
        return np.empty(nbytes, np.uint8)

    def branch(self, b: int) -> AbstractContextManager[None]:
        return nullcontext()

    def blocking(self) -> AbstractContextManager[None]:
        return nullcontext()

    def abort(self, cause: BaseException) -> None:
        if self.job.aborted is None:
            self.job.fail(cause)

    def submit(self, func: Callable[..., object], *args: Any) -> None:
        func(*args)


class FakeJob:
    """All ranks."""

    def __init__(self, n: int) -> None:
        self.groups = [FakeGroup(self, r) for r in range(n)]
        self.aborted: BaseException | None = None
        self.reduced = 0

    def reduce(self) -> None:
        """Averages or gathers what every rank has started."""
        while all(len(group.started) > self.reduced for group in self.groups):
            entries = [group.started[self.reduced] for group in self.groups]
            labels = {group.labels[self.reduced] for group in self.groups}
            assert len(labels) == 1, labels
            self.reduced += 1
            arrays = [array for array, _ in entries]
            result = None
            if labels.pop().startswith(GATHER):
                result = [array.copy() for array in arrays]
            else:
                mean = sum(arrays) / np.asarray(len(entries), arrays[0].dtype)
                for array in arrays:
                    array[...] = mean
            for _, future in entries:
                future.set_result(result)

    def fail(self, cause: BaseException) -> None:
        """Ends what is under way, as the loss of a rank does."""
        self.aborted = cause
        for group in self.groups:
            for _, future in group.started:
                future.try_set_exception(cause)


class FakeModel:
    """Some parameters, which a test may change; their names are their numbers."""

    def __init__(self, parameters: list[Tensor], sparse: Sequence[int] = ()) -> None:
        self.parameters = parameters
        self.sparse = sparse

    def trained(self) -> list[Trained]:
        return [
            Trained(f"{i}", each, Slot(each.shape, each.dtype, i in self.sparse))
            for i, each in enumerate(self.parameters)
            if each.requires_grad
        ]

    def described(self) -> Array:
        return np.array([each.requires_grad for each in self.parameters], np.uint8)

    def check(self, found: Sequence[Array]) -> None:
        if len({each.tobytes() for each in found}) > 1:
            raise CollectiveMismatchError("the ranks have different models")
