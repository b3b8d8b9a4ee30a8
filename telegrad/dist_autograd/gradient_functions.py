"""The functions that a pass leaves when it is recorded: gradients that cross are recorded, too.

Under `create_graph` a gradient is a Tensor with a place in the graph of the worker that computed it.
The message that takes it to another worker is one like any other: its sender has a send function
above the gradients, its receiver a recv function below them, for the cuts of later passes. The cut
of the pass that sends it was fixed before and has neither, or leads nowhere from them.

    forward     x ── send ───────────▶ recv ── y             gradients of y and x: gy and gx
    pass 1     gx ◀── recv' ─ ─ ─ ─ ── send' ◀── gy          recorded
    pass 2        ─── (gx leads to recv') ──▶ send' ──▶ ...  the gradients of gx
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from telegrad.autograd import Gradients, Tensor, attach
from telegrad.dist_autograd.functions import RecvFunction, SendFunction
from telegrad.dist_autograd.messages import PassMessage
from telegrad.types import WorkerInfo

if TYPE_CHECKING:
    from telegrad.dist_autograd.context import Context

__all__ = ["record_received", "record_sent"]


def record_sent(
    context: Context, peer: WorkerInfo, message: PassMessage, new_message: Callable[[], int]
) -> None:
    """Gives a message the send function that its gradients need, if one of them does.

    Args:
        context: Where it is recorded.
        peer: The receiver.
        message: Its gradients are Tensors.
        new_message: Draws autograd message ids.
    """
    flat = [gradient for _, slots in message.gradients for gradient in slots]
    needing = {
        place: each
        for place, each in enumerate(flat)
        if isinstance(each, Tensor) and each.requires_grad
    }
    if not needing:
        return
    number = new_message()
    context.record_send(
        SendFunction.of(needing.values(), context_id=context.id, peer=peer, message=number)
    )
    message.function, message.slots = number, tuple(needing)


def record_received(
    context: Context, peer: WorkerInfo, message: PassMessage
) -> list[tuple[int, Gradients]]:
    """Returns the gradients of a message, at their places below the recv function of it.

    Args:
        context: Where it is recorded.
        peer: The sender.
        message: It names a function.
    """
    function = RecvFunction(
        len(message.slots), context_id=context.id, peer=peer, message=message.function
    )
    context.record_receive(function)
    outputs = {slot: output for output, slot in enumerate(message.slots)}
    place = 0
    received: list[tuple[int, Gradients]] = []
    for number, slots in message.gradients:
        attached = []
        for gradient in slots:
            if place in outputs and isinstance(gradient, Tensor):
                gradient = attach(gradient.data, function, outputs[place])
            attached.append(gradient)
            place += 1
        received.append((number, tuple(attached)))
    return received
