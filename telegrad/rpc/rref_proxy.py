"""Stand-ins for an RRef's value: every name is a method that runs on the owner's object."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

from telegrad.errors import BlockingCallError
from telegrad.rpc.rref_calls import Method, RRefCalls
from telegrad.rpc.timeouts import seconds
from telegrad.transport import on_own_loop

if TYPE_CHECKING:
    from telegrad.rpc.future import Future
    from telegrad.rpc.rref_reference import Reference

__all__ = ["AsyncProxy", "RemoteProxy", "SyncProxy"]

R = TypeVar("R")


class _Target:
    """What the three stand-ins share: whose methods, through what, for how long."""

    __slots__ = ("calls", "reference", "timeout")

    def __init__(self, calls: RRefCalls, reference: Reference, timeout: float | None) -> None:
        seconds(timeout, 0.0)  # refuses 0, negatives and bools before any call
        self.calls = calls
        self.reference = reference
        self.timeout = timeout

    def method(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Method:
        return Method(self.reference, name, args, kwargs)


@final
class UncalledMethod(Generic[R]):
    """`proxy.m`, before it is called: nothing was sent, so nobody knows yet what `m` is.

    Raises:
        AttributeError: The name is not public.
    """

    __slots__ = ("_name", "_run", "_target")

    def __init__(
        self, target: _Target, name: str, run: Callable[[str, tuple[Any, ...], dict[str, Any]], R]
    ) -> None:
        if name.startswith("_"):
            raise AttributeError(
                f"{name!r} begins with an underscore and is not called through an RRef; "
                "give the method a public name"
            )
        self._target = target
        self._name = name
        self._run = run

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        """Calls it on the owner, which raises TypeError where it is no method."""
        return self._run(self._name, args, kwargs)

    def __repr__(self) -> str:
        reference = self._target.reference
        return (
            f"<method {reference.type_name or 'RRef'}.{self._name} at {reference.owner.name!r}, not "
            "called; write (...) behind it, and read attributes through a method that returns them>"
        )


@final
class SyncProxy:
    """`proxy.m(x)` runs `value.m(x)` on the owner and returns its result."""

    __slots__ = ("_target",)

    def __init__(self, calls: RRefCalls, reference: Reference, timeout: float | None) -> None:
        self._target = _Target(calls, reference, timeout)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return UncalledMethod(self._target, name, self._run)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the value itself."""
        return self._run("__call__", args, kwargs)

    def _run(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if on_own_loop():
            raise BlockingCallError(
                f"rpc_sync().{name}() would block a loop of telegrad's; "
                f"write `await rref.rpc_async().{name}(...)` in an async def function"
            )
        target = self._target
        return target.calls.call(target.method(name, args, kwargs), target.timeout).wait()


@final
class AsyncProxy:
    """`proxy.m(x)` runs `value.m(x)` on the owner and returns a Future of its result."""

    __slots__ = ("_target",)

    def __init__(self, calls: RRefCalls, reference: Reference, timeout: float | None) -> None:
        self._target = _Target(calls, reference, timeout)

    def __getattr__(self, name: str) -> Callable[..., Future[Any]]:
        return UncalledMethod(self._target, name, self._run)

    def __call__(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """Calls the value itself."""
        return self._run("__call__", args, kwargs)

    def _run(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Future[Any]:
        target = self._target
        return target.calls.call(target.method(name, args, kwargs), target.timeout)


@final
class RemoteProxy(Generic[R]):
    """`proxy.m(x)` runs `value.m(x)` on the owner and returns an RRef to its result."""

    __slots__ = ("_make", "_target")

    def __init__(
        self,
        calls: RRefCalls,
        reference: Reference,
        timeout: float | None,
        make: Callable[[Reference], R],
    ) -> None:
        self._target = _Target(calls, reference, timeout)
        self._make = make

    def __getattr__(self, name: str) -> Callable[..., R]:
        return UncalledMethod(self._target, name, self._run)

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        """Calls the value itself."""
        return self._run("__call__", args, kwargs)

    def _run(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        target = self._target
        method = target.method(name, args, kwargs)
        return self._make(target.calls.create_by_method(method, target.timeout))
