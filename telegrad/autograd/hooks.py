"""Lists of user callbacks, and the handles that take them off again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar, final

__all__ = ["HookList", "NodeHooks", "RemovableHandle"]

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
