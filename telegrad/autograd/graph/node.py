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
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypeVar, final

from telegrad.errors import AutogradError

if TYPE_CHECKING:
    from telegrad.types import Array

__all__ = [
    "Edge",
    "HookList",
    "Node",
    "NodeHooks",
    "RemovableHandle",
    "Sink",
    "Value",
]


# -- lists of user callbacks, and the handles that take them off again ---------------------------

H = TypeVar("H")


@final
class RemovableHandle:
    """Takes one hook off again; as a context manager, at the end of the block."""

    __slots__ = ("_remove",)

    def __init__(self, remove: Callable[[], None]) -> None:
        self._remove = remove

    def remove(self) -> None:
        """Takes the hook off; does nothing the second time."""
        self._remove()

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.remove()


@final
class HookList(Generic[H]):
    """Hooks in the order in which they were added; may change while it is iterated."""

    __slots__ = ("_hooks",)

    def __init__(self) -> None:
        self._hooks: dict[object, H] = {}

    def add(self, hook: H) -> RemovableHandle:
        """Appends `hook` and returns the handle that removes it."""
        key = object()
        self._hooks[key] = hook

        def remove() -> None:
            self._hooks.pop(key, None)

        return RemovableHandle(remove)

    def __iter__(self) -> Iterator[H]:
        return iter(tuple(self._hooks.values()))

    def __len__(self) -> int:
        return len(self._hooks)


@final
class NodeHooks:
    """What is called around one node's rule, outermost first.

    Attributes:
        outputs: (output, hook): sees the gradient of that output, may return another.
        retained: (output, keep): is given the gradient of that output after those.
        before: Sees the gradients of all outputs, may return others.
        after: Sees the gradients of the inputs and those of the outputs, may return other
            gradients of the inputs.
        origin: What checks the gradients of the inputs and knows where the node was recorded.
    """

    __slots__ = ("after", "before", "origin", "outputs", "retained")

    def __init__(self) -> None:
        self.outputs: HookList[tuple[int, Callable[[Any], Any]]] = HookList()
        self.retained: HookList[tuple[int, Callable[[Any], None]]] = HookList()
        self.origin: Callable[[str, Any, Any], None] | None = None
        self.before: HookList[Callable[[Any], Any]] = HookList()
        self.after: HookList[Callable[[Any, Any], Any]] = HookList()


# ------------------------------------------------------------------------------------------------

Edge: TypeAlias = "tuple[Node, int]"
"""A node, and which of its outputs."""

_Gradients: TypeAlias = "tuple[Array | Any | None, ...]"
"""The `Gradients` of tensor.py; Any is a Tensor, which holds its node and so stands above nodes."""


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
    def backward(self, gradients: _Gradients) -> _Gradients:
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
        self, hook: Callable[[_Gradients, _Gradients], _Gradients | None]
    ) -> RemovableHandle:
        """Has `hook(input_gradients, output_gradients)` called after the rule.

        Gradients are arrays, under `create_graph` Tensors. What it returns, unless None, takes
        the place of the gradients of the inputs.
        """
        return self.make_hooks().after.add(hook)

    def register_prehook(self, hook: Callable[[_Gradients], _Gradients | None]) -> RemovableHandle:
        """Has `hook(output_gradients)` called before the rule; it may return others."""
        return self.make_hooks().before.add(hook)

    def __repr__(self) -> str:
        return f"<{self.name}>"


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

    def backward(self, gradients: _Gradients) -> _Gradients:
        """Never runs: a graph task calls its `sink` instead.

        Raises:
            AutogradError: Always, with `refusal`.
        """
        raise AutogradError(self.refusal)


# -- an array, and the count of the changes made in its memory -----------------------------------


@final
class Value:
    """What a Tensor holds at one time, read and replaced as one: a recorded graph keeps it.

    The changes of one piece of memory are counted in one place, which views of it share: the
    Value that had the memory first.

    Args:
        array: The array.
        memory: The Value that counts, if another one had this memory before.

    Attributes:
        array: The array.
        counter: The Value that counts the changes, None for this one.
        changes: How often the memory was changed; counted in `counter` alone if there is one.
    """

    __slots__ = ("array", "changes", "counter")

    def __init__(self, array: Array, memory: Value | None = None) -> None:
        self.array = array
        self.counter: Value | None = memory if memory is None else memory.counter or memory
        self.changes = 0

    @property
    def version(self) -> int:
        """How often the memory was changed, by whatever Tensor."""
        return (self.counter or self).changes

    def bump(self) -> None:
        """Notes that the memory was changed."""
        (self.counter or self).changes += 1
