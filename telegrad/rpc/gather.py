"""Many calls at once: all of their values, or the first k of them; what is common is encoded once."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

from telegrad.errors import CallTimeoutError
from telegrad.rpc.agent import Agent
from telegrad.rpc.ambient import current_agent
from telegrad.rpc.blocking import Wait, comes_from
from telegrad.rpc.codec import Prepared
from telegrad.rpc.future import Future
from telegrad.rpc.race import Race, checked_k
from telegrad.rpc.serving import CALL
from telegrad.rpc.timeouts import seconds
from telegrad.rpc.unread import watched
from telegrad.rpc.user_call import call_payload
from telegrad.types import WorkerInfo

__all__ = ["gather"]

Call: TypeAlias = tuple[Any, ...] | Future[Any]


def gather(
    calls: Iterable[Call], k: int | None = None, timeout: float | None = None
) -> Future[list[Any]]:
    """Makes several calls at once and returns the future of their values, in the order of `calls`.

    With `k` it is that of the values of the first `k` that succeed, in the order of `calls` too.
    Those that are not needed any more are cancelled, and so are all when the future itself is.
    Calls with the same function and the same argument objects are encoded once, and their arrays
    copied once, however many workers they go to.

    Args:
        calls: Tuples `(to, func)`, `(to, func, args)` or `(to, func, args, kwargs)` as for
            `rpc_async`, and futures, in any mixture.
        k: How many must succeed; None for all.
        timeout: Seconds for the calls, and for futures among them; None for the default, which
            bounds no future that was given.

    Returns:
        Without `k` it fails as soon as one fails, with that error. With `k` it fails with
        NotEnoughResultsError as soon as fewer than `k` can succeed, which names each failure.

    Raises:
        TypeError: An item has another form.
        ValueError: `k` is negative, or more than there are calls.
        UnknownWorkerError: There is no such worker; nothing was sent.
        EncodeError: A function or an argument cannot travel; nothing was sent.
        NotInitializedError: No agent runs here.
    """
    agent = current_agent()
    given: object = calls
    if isinstance(given, Future):
        raise TypeError("gather takes several calls or futures, not one future; write [future]")
    seconds(timeout, math.inf)  # refuses 0, negatives and bools before anything is sent
    asked = _prepare(agent, list(calls))
    if k is not None:
        checked_k(k, len(asked))
    futures = _send(agent, asked, timeout)
    futures_given = any(isinstance(each, Future) for each in asked)
    race = Race(
        futures,
        k,
        _label(len(asked), k),
        as_values=True,
        in_order=True,
        cancels=True,
        dispatch=agent.submit,
    )
    result = race.start()
    if futures_given and timeout is not None and not race.over:
        _bound(agent, race, result, timeout)
    else:
        comes_from(result, Wait(tuple(futures)))
    return watched(agent, result)


@final
@dataclass(frozen=True, slots=True)
class _Request:
    """A call that is ready to be sent to its worker."""

    to: WorkerInfo
    function: str
    prepared: Prepared


def _prepare(agent: Agent, calls: Sequence[object]) -> list[_Request | Future[Any]]:
    """Checks and encodes all calls before any of them is sent."""
    parsed: list[_Parsed | Future[Any]] = []
    known: dict[object, _Encoded] = {}
    prepared: list[_Request | Future[Any]] = []
    for place, call in enumerate(calls):
        with _naming(place):
            parsed.append(_parse(agent, place, call))
    for place, each in enumerate(parsed):
        with _naming(place):
            prepared.append(each if isinstance(each, Future) else each.request(known))
    return prepared


@contextlib.contextmanager
def _naming(place: int) -> Iterator[None]:
    """Notes which call it is that is refused."""
    try:
        yield
    except Exception as error:
        error.add_note(f"it is item {place} of the calls that were given to gather")
        raise


@final
@dataclass(frozen=True, slots=True)
class _Encoded:
    """A payload, and what keeps it alive: no id in a key is used twice."""

    prepared: Prepared
    payload: object


@final
@dataclass(frozen=True, slots=True)
class _Parsed:
    """A call as it was written."""

    to: WorkerInfo
    func: Any
    args: object
    kwargs: object

    def request(self, known: dict[object, _Encoded]) -> _Request:
        """Encodes it, unless an equal one was encoded already."""
        function, payload = call_payload(self.func, self.args, self.kwargs)
        key = self._key(payload["args"], payload["kwargs"])
        if key not in known:
            known[key] = _Encoded(Prepared.of(payload), payload)
        return _Request(self.to, function, known[key].prepared)

    def _key(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
        """The very same objects: `(x,)` is a new tuple each time, `x` is not."""
        named = tuple((name, id(value)) for name, value in kwargs.items())
        return id(self.func), tuple(map(id, args)), named


def _parse(agent: Agent, place: int, call: object) -> _Parsed | Future[Any]:
    if isinstance(call, Future):
        return call
    if not isinstance(call, tuple) or not 2 <= len(call) <= 4:
        raise TypeError(
            f"a call is a tuple (to, func), (to, func, args) or (to, func, args, kwargs), or a "
            f"future, but item {place} is {call!r}"
        )
    to, func, *rest = call
    args = rest[0] if rest else ()
    kwargs = rest[1] if len(rest) > 1 else None
    return _Parsed(agent.worker(to), func, args, kwargs)


def _send(
    agent: Agent, asked: Sequence[_Request | Future[Any]], timeout: float | None
) -> list[Future[Any]]:
    """Sends them all; where one cannot be, those before it are cancelled."""
    futures: list[Future[Any]] = []
    sent: list[Future[Any]] = []
    try:
        for each in asked:
            if isinstance(each, Future):
                futures.append(each)
                continue
            sent.append(
                agent.send(each.to, CALL, each.prepared, function=each.function, timeout=timeout)
            )
            futures.append(sent[-1])
    except BaseException:
        for future in sent:
            future.cancel()
        raise
    return futures


def _bound(agent: Agent, race: Race, result: Future[list[Any]], timeout: float) -> None:
    """Ends it after some seconds: the futures that were given have no deadline of this call."""

    def expire() -> None:
        race.call_off(
            CallTimeoutError(
                f"{result._label} was not done after {timeout:.3g} s; what it waited for was "
                "cancelled",
                phase="waiting",
                elapsed=timeout,
            )
        )

    result.call_when_done(agent.after(timeout, expire))


def _label(count: int, k: int | None) -> str:
    return f"gather of {count}" if k is None else f"gather of {k} of {count}"
