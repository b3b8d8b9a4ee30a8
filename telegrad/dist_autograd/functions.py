"""The two nodes at which the graph crosses from one worker to another.

sender's graph                                         receiver's graph

... ◀── h ◀── SendFunction  ◀ ─ ─ gradients ─ ─ ─  RecvFunction ◀── h' ◀── ...
        x ◀──┘  one slot per Tensor that was sent      └── x'
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from telegrad.arrays import CPU, to_device
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
    """What was sent in one message: gradients enter this worker's graph here.

    Attributes:
        context_id: The autograd context of the message.
        peer: Who receives it.
        message: The autograd message id; with sender and receiver it names the pair.
        devices: Where the Tensors that were sent live. The receiver may have had no GPU, and
            their gradients then come from its host.
    """

    __slots__ = ("context_id", "devices", "message", "peer")

    def __init__(
        self,
        edges: Iterable[Edge | None],
        *,
        context_id: int,
        peer: WorkerInfo,
        message: int,
        devices: Sequence[str],
    ) -> None:
        self.edges = tuple(edges)
        self.num_outputs = len(self.edges)
        self._hooks = None
        self.context_id = context_id
        self.peer = peer
        self.message = message
        self.devices = tuple(devices)

    @staticmethod
    def of(
        tensors: Collection[Tensor], *, context_id: int, peer: WorkerInfo, message: int
    ) -> SendFunction:
        """Returns what stands above tensors that were sent in one message, in this order."""
        edges: list[Edge | None] = []
        devices: list[str] = []
        for each in tensors:
            edges.append(each.edge)
            devices.append(each.device)
        return SendFunction(
            edges, context_id=context_id, peer=peer, message=message, devices=devices
        )

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"SendFunction(to {self.peer.name!r}, message {self.message})"

    def backward(self, gradients: Gradients) -> Gradients:
        """Hands each slot's gradient to the Tensor that was sent in it."""
        placed: list[Gradient | None] = []
        for gradient, device, edge in zip(gradients, self.devices, self.edges, strict=True):
            if gradient is None or (type(gradient) is np.ndarray and device == CPU):
                placed.append(gradient)  # as nearly all
            else:
                placed.append(_on(gradient, device, edge))
        return tuple(placed)


def _on(gradient: Gradient, device: str, edge: Edge | None) -> Gradient:
    if is_row_sparse(gradient):
        # Rows stay rows on their way to a leaf, or on to another worker; rules get arrays.
        moved = gradient.to(device)
        return moved if edge is not None and edge[0].is_end else moved.to_dense()  # type: ignore[return-value]
    if isinstance(gradient, Tensor):
        return gradient.to(device)
    return to_device(gradient, device)


@final
class RecvFunction(Sink):
    """What was received in one message: gradients leave this worker's graph here.

    Attributes:
        context_id: The autograd context of the message.
        peer: Who sent it.
        message: The autograd message id, as in the SendFunction there.
    """

    __slots__ = ("context_id", "message", "peer")

    def __init__(self, slots: int, *, context_id: int, peer: WorkerInfo, message: int) -> None:
        super().__init__(slots)
        self.context_id = context_id
        self.peer = peer
        self.message = message

    @property
    def refusal(self) -> str:
        """What a local backward that meets it says."""
        return (
            f"the graph goes on at worker {self.peer.name!r}, from which a value was received in "
            f"autograd context {self.context_id}; a local backward() ends at this worker, so call "
            "dist_autograd.backward(context_id, [loss])"
        )

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"RecvFunction(from {self.peer.name!r}, message {self.message})"


@dataclass(frozen=True, slots=True)
class Functions:
    """The send and recv functions recorded in a context so far."""

    sends: dict[FunctionKey, SendFunction]
    receives: dict[FunctionKey, RecvFunction]


# -- tensors on the wire: the array, and nothing of the graph; a Parameter arrives as a Tensor ---
#
# Whether a Tensor needs a gradient is the interceptor's affair: it travels beside the document. The
# gradients of some rows alone travel as these rows.


def _describe(tensor: Tensor, memory: Memory) -> tuple[object, Sequence[Buffer]]:
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
