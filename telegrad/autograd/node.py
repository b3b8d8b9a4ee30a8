r"""The graph: nodes with rules, and the edges along which gradients travel backwards.

A node stands for one recorded operation. Its outputs are numbered; an `Edge` names one output of
one node. `node.edges` has one entry per input: the edge of what produced that input, or None
where the input needs no gradient.

    x (leaf)            w (leaf)          AccumulateGrad(x)    AccumulateGrad(w)
        \              /                           ▲  edges[0]   ▲  edges[1]
         y = multiply(x, w)                         └─ Node multiply
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, ClassVar, TypeAlias, final

from telegrad.autograd.hooks import NodeHooks, RemovableHandle
from telegrad.errors import AutogradError

if TYPE_CHECKING:
    from telegrad.autograd.tensor import Tensor

__all__ = ["AccumulateGrad", "Edge", "Gradient", "Gradients", "Node", "Sink"]

Gradient: TypeAlias = "Array | Tensor"
"""An array; under `create_graph` a Tensor."""

if TYPE_CHECKING:
    from telegrad.types import Array

Gradients: TypeAlias = "tuple[Gradient | None, ...]"
"""One per output, or one per edge; None where no gradient came or goes."""

Edge: TypeAlias = "tuple[Node, int]"
"""A node, and which of its outputs."""


class Node(ABC):
    """One recorded operation; equal and hashed by identity.

    Several graph tasks may run through one node, also at once; a node keeps nothing of a task.

    Attributes:
        edges: One per input, towards what produced it; None where no gradient is needed.
        num_outputs: How many outputs, and so gradients handed to `backward`, there are.
        is_end: Whether a graph task deals with it instead of calling `backward`.
    """

    __slots__ = ("__weakref__", "_hooks", "edges", "num_outputs")
    is_end: ClassVar[bool] = False

    def __init__(self, edges: Iterable[Edge | None] = (), *, num_outputs: int = 1) -> None:
        self.edges: tuple[Edge | None, ...] = tuple(edges)
        self.num_outputs = num_outputs
        self._hooks: NodeHooks | None = None

    @property
    def name(self) -> str:
        """What messages call it."""
        return type(self).__name__

    @abstractmethod
    def backward(self, gradients: Gradients) -> Gradients:
        """Runs the rule.

        Args:
            gradients: One per output, at least one of them not None. They may be shared with
                other nodes: a rule never writes into them.

        Returns:
            One per edge; None where the edge is None or no gradient flows.

        Raises:
            AutogradError: What the rule needs was freed, or changed in place.
        """

    def release(self) -> None:
        """Frees what the rule saved. A node that saved something cannot run again."""
        return

    @property
    def hooks(self) -> NodeHooks | None:
        """What is called around the rule; None where nothing is."""
        return self._hooks

    def make_hooks(self) -> NodeHooks:
        """Returns `hooks`, made now if there were none."""
        if self._hooks is None:
            self._hooks = NodeHooks()
        return self._hooks

    def register_hook(
        self, hook: Callable[[Gradients, Gradients], Gradients | None]
    ) -> RemovableHandle:
        """Has `hook(input_gradients, output_gradients)` called after the rule.

        Gradients are arrays, under `create_graph` Tensors. What it returns, unless None, takes
        the place of the gradients of the inputs.
        """
        return self.make_hooks().after.add(hook)

    def register_prehook(self, hook: Callable[[Gradients], Gradients | None]) -> RemovableHandle:
        """Has `hook(output_gradients)` called before the rule; it may return others."""
        return self.make_hooks().before.add(hook)

    def __repr__(self) -> str:
        return f"<{self.name}>"


@final
class AccumulateGrad(Node):
    """The end of the graph at one leaf.

    There is at most one of a leaf at any time, which the graphs keep, not the leaf (that would be
    a reference cycle around its array): see `Leaf.node`.
    """

    __slots__ = ("tensor",)
    is_end: ClassVar[bool] = True

    def __init__(self, tensor: Tensor) -> None:
        self.edges = ()
        self.num_outputs = 1
        self._hooks = None
        self.tensor = tensor

    def backward(self, gradients: Gradients) -> Gradients:
        """Passes nothing on: a graph task delivers to the leaf instead of calling this."""
        return ()

    @property
    def hooks(self) -> NodeHooks | None:
        """Kept by the leaf, which outlives its nodes."""
        leaf = self.tensor._leaf
        return None if leaf is None else leaf.hooks

    def make_hooks(self) -> NodeHooks:
        """Returns the leaf's hooks, made now if there were none."""
        return self.tensor.make_leaf_hooks()


class Sink(Node):
    """A node whose inputs lie outside this process' graph: gradients end here and go elsewhere.

    A graph task that was given `sink` calls `sink(node, gradients)` exactly once for each sink
    that it reaches, with None for `gradients` where no gradient came at all. A task that was
    given none refuses to start.

    Args:
        num_outputs: How many gradients come to it.
        refusal: See the property.
    """

    __slots__ = ("_refusal",)
    is_end: ClassVar[bool] = True

    def __init__(self, num_outputs: int = 1, *, refusal: str = "") -> None:
        self.edges = ()
        self.num_outputs = num_outputs
        self._hooks = None
        self._refusal = refusal

    @property
    def refusal(self) -> str:
        """What a local backward that meets it says; it tells the user what to write."""
        return self._refusal

    def backward(self, gradients: Gradients) -> Gradients:
        """Never runs: a graph task calls its `sink` instead.

        Raises:
            AutogradError: Always, with `refusal`.
        """
        raise AutogradError(self.refusal)
