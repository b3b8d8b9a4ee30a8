"""`SavingNode`: a node that keeps values for its rule until they are freed, or computed again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from telegrad.autograd.node import AccumulateGrad, Edge, Node
from telegrad.errors import AutogradError

if TYPE_CHECKING:
    from typing import Self

__all__ = ["SavingNode", "Segment", "is_leaf"]


class Segment(ABC):
    """Some operations that are computed again in the backward: see `checkpoint`."""

    @abstractmethod
    def compute(self) -> None:
        """Gives its nodes what they saved in the forward; does nothing the second time."""

    @abstractmethod
    def replace(self, nodes: Mapping[Node | None, SavingNode]) -> None:
        """Puts others in the place of its nodes: the keys are those of now."""


class SavingNode(Node):
    """Keeps what its rule needs until it is released.

    A checkpoint drops that as soon as it was saved, and leaves it to a segment to compute it again.
    """

    __slots__ = ("_saved", "_segment")

    _saved: list[Any] | None
    _segment: Segment  # unset in all nodes but those of checkpoints

    def release(self) -> None:
        """Frees the saved values, if there are any."""
        if self._saved:
            self._saved = None

    @abstractmethod
    def saved_leaves(self) -> tuple[Any, ...]:
        """Returns what was saved of leaves, which a segment must find unchanged; None elsewhere."""

    @property
    def segment(self) -> Segment | None:
        """What computes the saved values again; None where they were simply kept."""
        return getattr(self, "_segment", None)

    def drop_saved(self, segment: Segment) -> None:
        """Leaves the saved values to `segment`."""
        self._saved = None
        self._segment = segment

    def take_saved(self, other: Self) -> None:
        """Takes over what `other`, which is the same computed again, has saved."""
        self._saved = other._saved
        segment = other.segment
        if segment is not None:
            self._segment = segment

    def restore_saved(self) -> list[Any]:
        """Returns the saved values, computed again by the segment.

        Raises:
            AutogradError: There is none, or it has done so before: they were freed.
        """
        segment = self.segment
        if segment is not None:
            segment.compute()
        if self._saved is None:
            raise AutogradError(
                f"what {self.name!r} saved for its gradient was freed by an earlier backward; "
                "pass retain_graph=True to that one, or compute the forward again"
            )
        return self._saved


def is_leaf(edge: Edge | None) -> bool:
    """Tells whether `edge` leads to a leaf."""
    return edge is not None and isinstance(edge[0], AccumulateGrad)
