"""The types of `wait_all` and `gather`: those of the values, or Any if these differ in type."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, overload

from telegrad.rpc.future.future import Future
from telegrad.types import WorkerInfo

T = TypeVar("T")
Call: TypeAlias = tuple[Any, ...] | Future[Any]

if TYPE_CHECKING:
    To: TypeAlias = str | int | WorkerInfo
    Func: TypeAlias = Callable[..., T]
    Args: TypeAlias = tuple[Any, ...] | list[Any] | None
    Kwargs: TypeAlias = Mapping[str, Any] | None
    CallOf: TypeAlias = (
        tuple[To, Func[T]] | tuple[To, Func[T], Args] | tuple[To, Func[T], Args, Kwargs]
    )
    Later: TypeAlias = Coroutine[Any, Any, T] | Future[T]
    Seconds: TypeAlias = float | None

    # fmt: off
    class WaitAll(Protocol):
        """The type of `wait_all`."""

        @overload
        def __call__(self, futures: Iterable[Future[T]], timeout: Seconds = None) -> list[T]: ...
        @overload
        def __call__(self, futures: Iterable[Future[Any]],
                     timeout: Seconds = None) -> list[Any]: ...

    class Gather(Protocol):
        """The type of `gather`."""

        @overload
        def __call__(self, calls: Iterable[CallOf[Later[T]] | Future[T]],
                     k: int | None = None, timeout: Seconds = None) -> Future[list[T]]: ...
        @overload
        def __call__(self, calls: Iterable[CallOf[T] | Future[T]],
                     k: int | None = None, timeout: Seconds = None) -> Future[list[T]]: ...
        @overload
        def __call__(self, calls: Iterable[Call],
                     k: int | None = None, timeout: Seconds = None) -> Future[list[Any]]: ...
    # fmt: on


def waits_for_all(function: Callable[..., Any]) -> WaitAll:
    """Gives a function the type of `wait_all`."""
    return function


def gathers(function: Callable[..., Any]) -> Gather:
    """Gives a function the type of `gather`."""
    return function
