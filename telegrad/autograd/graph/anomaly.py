"""`detect_anomaly`, which names the line of the forward that led to a NaN."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextvars import Token
from functools import partial
from pathlib import Path
from traceback import FrameSummary, StackSummary
from types import FrameType
from typing import Any, Final, final

from telegrad.arrays import is_array, is_inexact, namespace
from telegrad.autograd.graph.grad_mode import (
    ENABLED,
    ModeBlock,
    is_grad_enabled,
    watched_by,
    watchers,
)
from telegrad.autograd.graph.node import Node
from telegrad.autograd.tensor.row_sparse import is_row_sparse
from telegrad.autograd.tensor.tensor import Tensor
from telegrad.errors import AutogradError

_OURS: Final = str(Path(__file__).resolve().parents[2])
_CALLERS: Final = 3  # callers shown above the named line: enough to tell one layer from another


@final
class detect_anomaly(ModeBlock):
    """A context manager in which an operation that makes a NaN raises and names its call site.

    An operation raises if its result holds a NaN and none of its inputs does. The forward raises
    at once. A backward raises when the rule of an operation recorded in the block makes the NaN,
    also if the backward itself runs after the block.

    The block checks every operation and remembers its line. Steps of small arrays take two to
    three times as long, steps of big ones a tenth more. The block acts on its own thread alone.

    Args:
        forward: True to check the forward too, False to check gradients alone.

    >>> from telegrad.autograd import tensor
    >>> import numpy as np
    >>> x = tensor([0.0, 1.0], requires_grad=True)
    >>> with detect_anomaly(), np.errstate(all="ignore"):  # doctest: +ELLIPSIS
    ...     (np.sqrt(x) * 0.0).sum().backward()
    Traceback (most recent call last):
    ...
    telegrad.errors.AutogradError: the backward of 'sqrt' made a NaN, in the gradient of...
    """

    def __init__(self, *, forward: bool = True) -> None:
        super().__init__()
        self._forward = forward

    def _set(self) -> Token[Any]:
        return ENABLED.set(watched_by(*watchers(), self._check, enabled=is_grad_enabled()))

    def _check(self, node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Checks the results, and makes the node check its gradients in each backward."""
        lines = _lines(sys._getframe(1))
        if self._forward and any(map(_has_nan, outputs)) and not any(map(_has_nan, inputs)):
            raise AutogradError(f"{node.name!r} made a NaN; it was called at\n{_shown(lines)}")
        if node.hooks is None:  # else an outer block checks it
            node.register_hook(partial(_check_gradients, lines, node.name))


def _check_gradients(
    lines: list[FrameSummary], name: str, results: Sequence[Any], given: Sequence[Any]
) -> None:
    bad = [i for i, gradient in enumerate(results) if _has_nan(gradient)]
    if bad and not any(map(_has_nan, given)):
        raise AutogradError(
            f"the backward of {name!r} made a NaN, in the gradient of argument "
            f"{', '.join(map(str, bad))}; the forward called it at\n{_shown(lines)}"
        )


def _has_nan(x: Any) -> bool:
    array = x.data if isinstance(x, Tensor) else x.values if is_row_sparse(x) else x
    if not is_array(array):
        return bool(array != array) if isinstance(array, (float, complex)) else False
    return is_inexact(array.dtype) and bool(namespace(array).isnan(array).any())


def _lines(frame: FrameType | None) -> list[FrameSummary]:
    """Returns the lines outside telegrad that lead here, the innermost one first."""
    found: list[FrameSummary] = []
    while frame is not None and len(found) <= _CALLERS:
        code = frame.f_code
        if not code.co_filename.startswith(_OURS):
            line = (code.co_filename, frame.f_lineno, code.co_name)
            found.append(FrameSummary(*line, lookup_line=False))
        frame = frame.f_back
    return found


def _shown(lines: list[FrameSummary]) -> str:
    return "".join(StackSummary.from_list(lines).format()).rstrip()
