"""`saved_values`, a block in which the graph keeps a token in place of each array that it saves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import Token
from typing import Any, TypeVar, final

from telegrad.autograd.graph.call_node import CallNode
from telegrad.autograd.graph.grad_mode import (
    ENABLED,
    ModeBlock,
    Watched,
    is_grad_enabled,
    watchers,
)
from telegrad.autograd.graph.node import Node
from telegrad.types import Array

T = TypeVar("T")


@final
class saved_values(ModeBlock):
    """A block in which operations save what `pack` makes of an array; the backward unpacks it.

    It moves saved values out of memory: to the host, to a file, into a shorter form. It is also a
    decorator. It acts on operations that are recorded in the block, on its own thread or task
    alone; a backward needs no block. Of nested blocks, the innermost one holds. In a function that
    `recompute` runs, nothing is packed: it saves nothing.

    `pack` gets each array that an operation saves for its gradient: arguments, results, and what
    `Function.forward` saves. It gets no leaves (parameters), since these keep their arrays anyway.
    An array that two operations save comes twice. `pack` must not write into the array. It may
    return the array itself: then the graph keeps it as if there were no block. An in-place change
    of a packed value is not noticed; a token that shares memory with it would give wrong gradients.

    `unpack` gets the token each time that a backward needs the value, from any thread; the graph
    keeps the token until it frees its saved values. `unpack` returns an array of the same dtype,
    shape and device. Both functions run in `no_grad`. Gradients of gradients work as without it.

    Args:
        pack: Returns the token of an array. If it raises, the operation raises.
        unpack: Returns the array of a token. If it raises, the backward raises.

    Raises:
        AutogradError: In the backward: `unpack` returned another dtype, shape or device.

    >>> import numpy as np
    >>> from telegrad.autograd import tensor
    >>> x = tensor([1.0, 2.0], requires_grad=True)
    >>> with saved_values(lambda array: array.tobytes(), np.frombuffer):
    ...     y = np.exp(x * 2.0)
    >>> y.sum().backward()
    >>> x.grad.data.round(3).tolist()
    [14.778, 109.196]
    """

    def __init__(self, pack: Callable[[Array], T], unpack: Callable[[T], Array]) -> None:
        super().__init__()
        self._pack = pack
        self._unpack = unpack

    def _set(self) -> Token[Any]:
        return ENABLED.set(Watched(is_grad_enabled(), watchers(), self._replace))

    def _replace(self, node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        if isinstance(node, CallNode):
            node.pack_saved(self._pack, self._unpack)
