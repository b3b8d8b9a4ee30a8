"""The two nodes at which the graph crosses from one worker to another.

sender's graph                                         receiver's graph

... ◀── h ◀── SendFunction  ◀ ─ ─ gradients ─ ─ ─  RecvFunction ◀── h' ◀── ...
        x ◀──┘  one slot per Tensor that was sent      └── x'
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from telegrad.arrays import CPU, Place, current_place, follow, to_device
from telegrad.autograd import (
    Edge,
    Gradient,
    Gradients,
    Node,
    RowSparse,
    Sink,
    Tensor,
    attach,
    is_row_sparse,
)
from telegrad.autograd.seams import edge_of
from telegrad.dist_autograd.pass_protocol import FunctionKey
from telegrad.errors import AutogradError, DecodeError
from telegrad.types import WorkerInfo
from telegrad.wire import (
    Buffer,
    ExternalType,
    Land,
    Memory,
    describe_held,
    rebuild_held,
    register_external,
)

__all__ = [
    "ROW_SPARSE",
    "TENSOR",
    "Functions",
    "RecvFunction",
    "SendFunction",
]


@final
class SendFunction(Node):
    """The node of one sent message, at which gradients enter this worker's graph.

    Args:
        tensors: The Tensors that were sent in the message, in this order; it stands above them.
        context_id: The autograd context of the message.
        peer: The worker that receives the message.
        message: The autograd message id; with sender and receiver it names the pair.

    Attributes:
        context_id: The autograd context.
        peer: The receiver.
        message: The message id.
        devices: The devices of the sent Tensors. A receiver without a GPU sends gradients from its
            host memory.
    """

    __slots__ = ("context_id", "devices", "message", "peer")

    def __init__(
        self, tensors: Collection[Tensor], *, context_id: int, peer: WorkerInfo, message: int
    ) -> None:
        edges: list[Edge | None] = []
        devices: list[str] = []
        made: list[Place] = []
        for each in tensors:
            edge, array = edge_of(each), each.data
            edges.append(edge)
            if type(array) is np.ndarray:
                devices.append(CPU)
                continue
            devices.append(each.device)
            if (place := current_place(array)) is not None:
                known = None if edge is None else getattr(edge[0], "_made_on", None)
                made += known or [place]
        self.edges = tuple(edges)
        self.num_outputs = len(edges)
        self._hooks = None
        self.context_id = context_id
        self.peer = peer
        self.message = message
        self.devices = tuple(devices)
        if made:
            self._made_on = tuple(made)

    @property
    def name(self) -> str:
        """The node's name in messages."""
        return f"SendFunction(to {self.peer.name!r}, message {self.message})"

    def backward(self, gradients: Gradients) -> Gradients:
        """Returns each slot's gradient, on the device of the Tensor that was sent in the slot."""
        placed: list[Gradient | None] = []
        for gradient, device, edge in zip(gradients, self.devices, self.edges, strict=True):
            if gradient is None or (type(gradient) is np.ndarray and device == CPU):
                placed.append(gradient)  # the usual case
            else:
                placed.append(_on(gradient, device, edge))
        return tuple(placed)


def _on(gradient: Gradient, device: str, edge: Edge | None) -> Gradient:
    if is_row_sparse(gradient):
        # Rows stay rows on their way to a leaf, or on to another worker; rules get arrays.
        moved = gradient.to(device)
        kept: Any = moved if edge is not None and edge[0].is_end else moved.to_dense()
        return kept  # type: ignore[no-any-return]
    if isinstance(gradient, Tensor):
        return gradient.to(device)
    return to_device(gradient, device)


@final
class RecvFunction(Sink):
    """The node of one received message, at which gradients leave this worker's graph.

    Attributes:
        context_id: The autograd context of the message.
        peer: The worker that sent the message.
        message: The autograd message id, as in the sender's SendFunction.
    """

    __slots__ = ("context_id", "message", "peer")

    def __init__(self, slots: int, *, context_id: int, peer: WorkerInfo, message: int) -> None:
        super().__init__(slots)
        self.context_id = context_id
        self.peer = peer
        self.message = message

    @property
    def refusal(self) -> str:
        """The message of the error that a local backward raises here."""
        return (
            f"the graph goes on at worker {self.peer.name!r}, from which a value was received in "
            f"autograd context {self.context_id}; a local backward() ends at this worker, so call "
            "dist_autograd.backward(context_id, [loss])"
        )

    @property
    def name(self) -> str:
        """The node's name in messages."""
        return f"RecvFunction(from {self.peer.name!r}, message {self.message})"


@dataclass(frozen=True, slots=True)
class Functions:
    """The send and recv functions recorded in a context so far."""

    sends: dict[FunctionKey, SendFunction]
    receives: dict[FunctionKey, RecvFunction]


# -- Tensors on the wire -------------------------------------------------------------------------
#
# Only the array travels, not the graph; a Parameter arrives as a Tensor. The interceptor sends
# beside the document which Tensors need a gradient. A RowSparse travels as its rows and values.


def _describe(tensor: Tensor, memory: Memory) -> tuple[object, Sequence[Buffer]]:
    edge = tensor._edge
    if edge is not None and (made := getattr(edge[0], "_made_on", None)):
        follow(made)  # the copy to the host, in this thread's stream
    return describe_held(tensor.data, memory)


def _rebuild(meta: Any, buffers: Sequence[Buffer], land: Land) -> Tensor:
    return attach(rebuild_held(meta, buffers, land), None)


def _describe_rows(gradient: RowSparse, memory: Memory) -> tuple[object, Sequence[Buffer]]:
    rows, first = describe_held(gradient.rows, memory)
    values, second = describe_held(gradient.values, memory)
    return [rows, values, list(gradient.shape)], [*first, *second]


def _rebuild_rows(meta: Any, buffers: Sequence[Buffer], land: Land) -> RowSparse:
    match meta:
        case [rows, values, list(shape)] if all(type(n) is int and n >= 0 for n in shape):
            held = [rebuild_held(rows, buffers[:1], land), rebuild_held(values, buffers[1:], land)]
        case _:
            raise DecodeError("the description of a RowSparse is not [its arrays, its shape]")
    if held[0].dtype.kind not in "iu":
        raise DecodeError("a RowSparse is not of a vector of rows and an array of values")
    rows, values = held
    try:
        gradient = RowSparse(rows, values, tuple(shape))
    except AutogradError as error:
        raise DecodeError(str(error)) from error
    if len(rows) and not 0 <= rows.min() <= rows.max() < shape[0]:
        raise DecodeError(f"a RowSparse of {shape[0]} rows names others")
    return gradient


TENSOR = ExternalType("tensor", Tensor, _describe, _rebuild)
ROW_SPARSE = ExternalType("row_sparse", RowSparse, _describe_rows, _rebuild_rows)

register_external(TENSOR)
register_external(ROW_SPARSE)
