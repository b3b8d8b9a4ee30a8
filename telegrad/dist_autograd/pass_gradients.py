"""The gradients of one pass at one worker, apart until it is known how the pass ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import final

from telegrad.arrays import namespace
from telegrad.autograd import Gradient, GradientTarget, Tensor
from telegrad.types import Array

__all__ = ["PassGradients"]


@final
class PassGradients(GradientTarget):
    """Keeps gradients by leaf and never touches `tensor.grad`; safe from several threads.

    Args:
        earlier: Finds those of the passes of this context that have ended.
    """

    def __init__(self, earlier: Callable[[], Sequence[PassGradients]]) -> None:
        super().__init__()
        self._earlier = earlier
        self._lock = threading.Lock()
        self._arrays: dict[Tensor, Array] = {}
        self._cleared = False

    def __call__(self, tensor: Tensor, gradient: Gradient) -> None:
        """Adds `gradient` to what is kept for `tensor`; shares no memory with it.

        So a hook may write into what `get` returns, as it may into `tensor.grad`.
        """
        array = gradient.data if isinstance(gradient, Tensor) else gradient
        with self._lock:
            if not self._cleared:
                present = self._arrays.get(tensor)
                self._arrays[tensor] = (
                    namespace(array).array(array) if present is None else present + array
                )

    def get(self, tensor: Tensor) -> Tensor | None:
        """Returns what is kept for `tensor`."""
        array = self._arrays.get(tensor)
        return None if array is None else Tensor(array)

    def replace(self, tensor: Tensor, gradient: Tensor | None) -> None:
        """Keeps `gradient` for `tensor` instead."""
        with self._lock:
            if gradient is None:
                self._arrays.pop(tensor, None)
            elif not self._cleared:
                self._arrays[tensor] = gradient.data

    def earlier(self) -> Sequence[PassGradients]:
        """Returns the gradients of the passes of this context that have ended."""
        return self._earlier()

    def arrays(self) -> dict[Tensor, Array]:
        """Returns the gradients; the arrays belong to the pass."""
        with self._lock:
            return dict(self._arrays)

    def clear(self) -> None:
        """Takes them away, for good."""
        with self._lock:
            self._cleared = True
            self._arrays.clear()
