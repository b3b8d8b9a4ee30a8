"""`SavedValue`: an array as it was when recorded, and how to notice that it was changed since."""

from __future__ import annotations

from typing import Any, NoReturn, final

from telegrad.autograd.node import Edge
from telegrad.autograd.saving_node import is_leaf
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
            what = "a value" if own is None else "the result"
            refuse_changed(value, self._version, operation, what)
        if not recorded:
            return value.array
        edge = self._edge if own is None else own
        if edge is None:
            return attach(value.array, None, memory=value)
        return attach(value.array, *edge, memory=value)

    def of_leaf(self) -> tuple[Value, int] | None:
        """Returns the value with the version that was saved, if a leaf holds it."""
        return (self._value, self._version) if is_leaf(self._edge) else None


def refuse_changed(value: Value, version: int, operation: str, what: str) -> NoReturn:
    """Says that `what`, which `operation` saved at `version`, was changed.

    Raises:
        AutogradError: Always.
    """
    raise AutogradError(
        f"{what} of shape {value.array.shape} that {operation!r} saved for its gradient "
        f"was changed in place since (version {value.version}, saved at {version}); "
        "write t = t + x instead of t += x, or assign t.data"
    )
