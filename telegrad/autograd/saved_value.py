"""`SavedValue`: an array as it was when recorded, and how to notice that it was changed since."""

from __future__ import annotations

from typing import Any, NoReturn, final

from telegrad.autograd.node import Edge
from telegrad.autograd.tensor import attach
from telegrad.autograd.value import Value
from telegrad.errors import AutogradError

__all__ = ["SavedValue", "refuse_changed"]


@final
class SavedValue:
    """An array as it was when recorded, and how to notice that it was changed since."""

    __slots__ = ("_edge", "_value", "_version")

    def __init__(self, value: Value, edge: Edge | None) -> None:
        self._value = value
        self._version = value.version
        self._edge = edge

    def unpack(self, operation: str, *, recorded: bool, own: Edge | None = None) -> Any:
        """Returns the array, or if `recorded` a Tensor at its place in the graph.

        Args:
            operation: Who saved it, for the message.
            recorded: Whether operations on it are to be recorded.
            own: Its place, if it is an output of the very node that saved it (which would be
                a reference cycle if it were kept).

        Raises:
            AutogradError: It was changed in place.
        """
        value = self._value
        if value.version != self._version:
            refuse_changed(value, self._version, operation)
        if not recorded:
            return value.array
        edge = self._edge if own is None else own
        if edge is None:
            return attach(value.array, None, memory=value)
        return attach(value.array, edge.node, edge.output, memory=value)


def refuse_changed(value: Value, version: int, operation: str) -> NoReturn:
    """Says that what `operation` saved at `version` was changed.

    Raises:
        AutogradError: Always.
    """
    raise AutogradError(
        f"a value of shape {value.array.shape} that {operation!r} saved for its gradient "
        f"was changed in place since (version {value.version}, saved at {version}); "
        "write t = t + x instead of t += x, or assign t.data"
    )
