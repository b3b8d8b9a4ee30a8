"""The gradients of one pass at one worker, kept apart until the pass has ended.

A gradient is an array for most leaves, a RowSparse if only rows were added, and a Tensor that can
be differentiated again if the pass was recorded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, final

import numpy as np

from telegrad.arrays import Streams, namespace, to_device
from telegrad.autograd import (
    Completion,
    Gradient,
    GradientTarget,
    Tensor,
    enable_grad,
    is_row_sparse,
)
from telegrad.autograd.seams import add_to
from telegrad.critical import critical

_AT_ONCE: Final = nullcontext()


@final
class PassGradients(GradientTarget):
    """A target that keeps gradients by leaf, not in `tensor.grad`; safe from several threads.

    Args:
        earlier: Function that returns the gradients of the ended passes of this context.

    Attributes:
        streams: The CUDA streams of the pass; None if it does not run on a GPU.
        complete: True if the pass has ended at this worker with success.
    """

    def __init__(self, earlier: Callable[[], Sequence[PassGradients]]) -> None:
        super().__init__()
        self._earlier = earlier
        self._lock = threading.Lock()
        self._held: dict[Tensor, Gradient] = {}
        self._cleared = False
        self.streams: Streams | None = None
        self.complete = False

    def __call__(self, tensor: Tensor, gradient: Gradient) -> None:
        """Adds `gradient` to the gradient of `tensor`, on the leaf's device, in memory of its own.

        So a hook may write into the result of `get`, as it may into `tensor.grad`.
        """
        plain = type(gradient) is np.ndarray  # the usual case; nothing else holds the array
        with critical.section, self._lock:
            # A rule that ran as the pass was aborted may still bring a gradient.
            if self._cleared:
                return
            present = self._held.get(tensor)
            if plain:
                if present is None:
                    self._held[tensor] = gradient
                    return
                del present
                # The gradient is out of the dict while it is added to. Readers take the lock, or
                # they would find none.
                box = [self._held.pop(tensor)]
                add_to(box, 0, gradient)  # in place if nobody else has the array
                self._held[tensor] = box[0]
            else:
                home = tensor.device
                added = moved_to(gradient, home)
                held = _copy(added) if present is None else sum_of(present, added)
                self._held[tensor] = moved_to(held, home)

    def get(self, tensor: Tensor) -> Tensor | None:
        """Returns the gradient of `tensor`, or None; a RowSparse stays one."""
        with critical.section, self._lock:
            held: Any = self._held.get(tensor)
        return held if held is None or _is_whole(held) else Tensor(held)

    def replace(self, tensor: Tensor, gradient: Tensor | None) -> None:
        """Replaces the gradient of `tensor` by `gradient`; None removes it."""
        with critical.section, self._lock:
            if gradient is None:
                self._held.pop(tensor, None)
            elif not self._cleared:
                rows = is_row_sparse(gradient)
                self._held[tensor] = gradient if rows or gradient.requires_grad else gradient.data

    def earlier(self) -> Sequence[PassGradients]:
        """Returns the gradients of the passes of this context that have ended."""
        return self._earlier()

    def held(self) -> dict[Tensor, Gradient]:
        """Returns the gradients; they belong to the pass, so callers must not write into them.

        On a GPU, the streams that are current in this thread go on behind those of the pass.
        """
        if self.streams is not None:
            self.streams.wait()
        with critical.section, self._lock:
            return dict(self._held)

    def in_order(self) -> AbstractContextManager[None]:
        """Returns a block whose work on GPUs comes after that of the rules, in any thread."""
        return _AT_ONCE if self.streams is None else self.streams.entered()

    def finish_then(self, done: Callable[[BaseException | None], None]) -> None:
        """Starts the work that hooks left for the end of the pass; blocks no thread until its end.

        Args:
            done: Function called once: with None when all of that work is done, else with the
                first error.
        """
        try:
            with self.in_order():
                completions = self.finish()
        except BaseException as error:  # a hook raised
            done(error)
        else:
            _when_all_done(completions, done)

    def release(self) -> None:
        """Has memory go back to the pool behind those that have read the gradients."""
        if self.streams is not None:
            self.streams.end_reads()

    def clear(self) -> None:
        """Removes all gradients and keeps no later ones."""
        with critical.section, self._lock:
            self._cleared = True
            self._held.clear()


def _when_all_done(
    completions: Sequence[Completion], done: Callable[[BaseException | None], None]
) -> None:
    if not completions:
        done(None)
        return

    def next_one(first: Completion) -> None:
        error = first.exception()
        if error is None:
            _when_all_done(completions[1:], done)
        else:
            done(error)

    completions[0].then(next_one)


def sum_of(first: Any, second: Any) -> Gradient:
    """Returns the sum of two gradients of one leaf: rows if both are, a Tensor if one is."""
    if isinstance(first, Tensor) or isinstance(second, Tensor):
        with enable_grad():
            return _dense(first) + _dense(second)  # type: ignore[no-any-return]
    total: Any = first + second
    result: Gradient = np.asarray(total) if isinstance(total, np.generic) else total
    return result


def _dense(gradient: Any) -> Any:
    return gradient.to_dense() if is_row_sparse(gradient) else gradient


def _is_whole(gradient: object) -> bool:
    return isinstance(gradient, Tensor) or is_row_sparse(gradient)


def moved_to(gradient: Any, device: str) -> Gradient:
    """Returns a gradient on `device`: CuPy puts results on the current device of the thread."""
    if _is_whole(gradient):
        with enable_grad():
            return gradient.to(device)  # type: ignore[no-any-return]
    return to_device(gradient, device)


def _copy(gradient: Any) -> Gradient:
    copied: Gradient
    if is_row_sparse(gradient):
        copied = gradient.copy()  # type: ignore[assignment]
    elif not isinstance(gradient, Tensor):
        copied = gradient  # the graph task passes an array that nothing else holds
    elif gradient.requires_grad:
        copied = gradient.copy()
    else:
        copied = namespace(gradient.data).array(gradient.data)
    return copied
