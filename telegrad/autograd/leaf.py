"""`Leaf`: what a Tensor that needs a gradient has besides its array."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, final

from telegrad.autograd.hooks import HookList, NodeHooks
from telegrad.autograd.node import AccumulateGrad

if TYPE_CHECKING:
    from telegrad.autograd.graph_task import Accumulate
    from telegrad.autograd.tensor import Tensor

__all__ = ["Leaf"]


@final
class Leaf:
    """The lock, the hooks and the node of one leaf.

    Attributes:
        lock: Held while `grad` or the array is replaced, which may run operations.
        hooks: What is called around its node; None where nothing is.
        post_accumulate: What is called after a gradient was added; None where nothing is.
        held: Its node, while a graph has one; ask `node`.
    """

    __slots__ = ("_node_lock", "held", "hooks", "lock", "post_accumulate")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.hooks: NodeHooks | None = None
        self.post_accumulate: HookList[Callable[[Tensor, Accumulate], None]] | None = None
        self._node_lock = threading.Lock()  # guards `held`, and the making of post_accumulate
        self.held: weakref.ref[AccumulateGrad] | None = None

    def make_post_accumulate(self) -> HookList[Callable[[Tensor, Accumulate], None]]:
        """Returns `post_accumulate`, made now if there was none."""
        with self._node_lock:
            if self.post_accumulate is None:
                self.post_accumulate = HookList()
            return self.post_accumulate

    def node(self, tensor: Tensor) -> AccumulateGrad:
        """Returns the node of `tensor`, whose leaf this is: one and the same while a graph has it."""
        held = self.held
        node = None if held is None else held()
        if node is not None:
            return node
        with self._node_lock:  # two threads that record with one leaf must agree on its node
            held = self.held
            node = None if held is None else held()
            if node is None:
                node = AccumulateGrad(tensor)
                self.held = weakref.ref(node)
            return node
