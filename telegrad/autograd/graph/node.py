r"""The graph: nodes with rules, and the edges along which gradients travel backwards.

A node stands for one recorded operation. Its outputs are numbered; an `Edge` names one output of
one node. `node.edges` has one entry per input: the output that produced the input, or None if the
input needs no gradient.

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
    from telegrad.arrays import Place
    from telegrad.types import Array

# -- lists of hooks, and the handles that remove them --------------------------------------------

H = TypeVar("H")


@final
class RemovableHandle:
    """A handle that removes one hook; as a context manager, at the end of the block."""

    __slots__ = ("_remove",)

    def __init__(self, remove: Callable[[], None]) -> None:
        self._remove = remove

    def remove(self) -> None:
        """Removes the hook; does nothing the second time."""
        self._remove()

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.remove()


@final
class HookList(Generic[H]):
    """Hooks in the order in which they were added; the list may change during iteration."""

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
    """The hooks that run before and after one node's rule, in the order of the attributes.

    Attributes:
        outputs: Pairs (output, hook). A hook gets the gradient of its output and may replace it.
        retained: Pairs (output, keep). `keep` gets the gradient of its output after `outputs`.
        before: Hooks that get the gradients of all outputs and may replace them.
        after: Hooks that get the gradients of inputs and outputs and may replace those of the
            inputs.
    """

    __slots__ = ("after", "before", "outputs", "retained")

    def __init__(self) -> None:
        self.outputs: HookList[tuple[int, Callable[[Any], Any]]] = HookList()
        self.retained: HookList[tuple[int, Callable[[Any], None]]] = HookList()
        self.before: HookList[Callable[[Any], Any]] = HookList()
        self.after: HookList[Callable[[Any, Any], Any]] = HookList()


# -- nodes and edges -----------------------------------------------------------------------------

Edge: TypeAlias = "tuple[Node, int]"
"""A node and the number of one of its outputs."""

_Gradients: TypeAlias = "tuple[Array | Any | None, ...]"
"""The `Gradients` of tensor.py; Any is a Tensor, a type of the file above: Tensors hold nodes."""


class Node(ABC):
    """One recorded operation, equal and hashed by identity.

    Several graph tasks may run through one node, also at once. A node stores no state of a task.

    Attributes:
        edges: One edge per input, to the output that produced it; None if it needs no gradient.
        num_outputs: The number of outputs, and so of gradients that `backward` gets.
        is_end: True if a graph task handles the node itself and does not call `backward`.
    """

    __slots__ = ("__weakref__", "_hooks", "_made_on", "edges", "num_outputs")
    is_end: ClassVar[bool] = False
    _made_on: tuple[Place, ...]  # the streams that made its outputs; unset for NumPy arrays

    def __init__(self, edges: Iterable[Edge | None] = (), *, num_outputs: int = 1) -> None:
        self.edges: tuple[Edge | None, ...] = tuple(edges)
        self.num_outputs = num_outputs
        self._hooks: NodeHooks | None = None

    @property
    def name(self) -> str:
        """The node's name in messages."""
        return type(self).__name__

    @abstractmethod
    def backward(self, gradients: _Gradients) -> _Gradients:
        """Runs the rule.

        Args:
            gradients: One gradient per output, at least one of them not None. Other nodes may
                share the arrays, so a rule never writes into them.

        Returns:
            One gradient per edge; None if the edge is None or no gradient flows.

        Raises:
            AutogradError: A value that the rule needs was freed, or changed in place.
        """

    def release(self) -> None:
        """Frees the values that the rule saved. A node that had saved values cannot run again."""
        return

    @property
    def hooks(self) -> NodeHooks | None:
        """The hooks around the rule, or None."""
        return self._hooks

    def make_hooks(self) -> NodeHooks:
        """Returns `hooks`, which it creates if there are none."""
        if self._hooks is None:
            self._hooks = NodeHooks()
        return self._hooks

    def register_hook(
        self, hook: Callable[[_Gradients, _Gradients], _Gradients | None]
    ) -> RemovableHandle:
        """Registers `hook(input_gradients, output_gradients)`, which runs after the rule.

        Gradients are arrays, under `create_graph` Tensors. A result other than None replaces the
        gradients of the inputs.
        """
        return self.make_hooks().after.add(hook)

    def register_prehook(self, hook: Callable[[_Gradients], _Gradients | None]) -> RemovableHandle:
        """Registers `hook(output_gradients)`, which runs before the rule and may replace them."""
        return self.make_hooks().before.add(hook)

    def __repr__(self) -> str:
        return f"<{self.name}>"


class Sink(Node):
    """A node whose inputs lie outside this process' graph, so gradients leave the process here.

    A graph task with a `sink` function calls `sink(node, gradients)` exactly once for each sink
    that it reaches. `gradients` is None if no gradient arrived. A task without the function
    refuses to start.

    Args:
        num_outputs: The number of gradients that the sink gets.
        refusal: The message of the error that a local backward raises at this sink.
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
        """The message of a local backward that reaches this sink, with the code to use instead."""
        return self._refusal

    def backward(self, gradients: _Gradients) -> _Gradients:
        """Raises, because a graph task calls its `sink` instead.

        Raises:
            AutogradError: Always, with `refusal`.
        """
        raise AutogradError(self.refusal)


# -- an array with a count of the changes to its memory ------------------------------------------


@final
class Value:
    """An array with its change count, which a Tensor holds and replaces as one object.

    A recorded graph keeps the Value, not the Tensor. Views of one memory share one count, which
    the Value that had the memory first keeps.

    Args:
        array: The array.
        memory: The Value that had this memory before, if there is one; its count is used.

    Attributes:
        array: The array.
        counter: The Value that counts the changes; None if this one does.
        changes: The number of changes of the memory; unused if `counter` is not None.
    """

    __slots__ = ("array", "changes", "counter")

    def __init__(self, array: Array, memory: Value | None = None) -> None:
        self.array = array
        self.counter: Value | None = memory if memory is None else memory.counter or memory
        self.changes = 0

    @property
    def version(self) -> int:
        """The number of changes of the memory, made through any Tensor."""
        return (self.counter or self).changes

    def bump(self) -> None:
        """Counts one change of the memory."""
        (self.counter or self).changes += 1
