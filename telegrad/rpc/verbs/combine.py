"""Sets of futures: all of them, each as it is completed, or the first that succeed.

The futures may be of calls and plain ones in any mixture, and used from any thread or loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar, final

from telegrad.critical import critical
from telegrad.errors import CallTimeoutError
from telegrad.rpc.agent.core import AgentCore, current_agent
from telegrad.rpc.base.frames import cut_own_frames
from telegrad.rpc.base.limits import seconds
from telegrad.rpc.call.codec import Prepared
from telegrad.rpc.call.serving import CALL
from telegrad.rpc.call.user_call import call_payload
from telegrad.rpc.future.future import Future, Listener, new_future
from telegrad.rpc.future.unread import origin_of_caller, watched
from telegrad.rpc.future.waits import Wait, comes_from
from telegrad.rpc.verbs.combine_types import Call, gathers, waits_for_all
from telegrad.rpc.verbs.race import Race, checked_k
from telegrad.transport import barred, refuse_to_block

# -- all of them, or each as it is completed -----------------------------------------------------
T = TypeVar("T")


def collect_all(futures: Iterable[Future[T]]) -> Future[list[Future[T]]]:
    """Returns a future of the list of `futures`, completed once all of them are, failed or not.

    Args:
        futures: The futures; the reader of the list reads their errors.

    Raises:
        TypeError: One of them is no Future.

    Example:
        >>> good, bad = Future(), Future()
        >>> good.set_result(1), bad.set_exception(KeyError("lr"))
        (None, None)
        >>> [type(future.exception()) for future in collect_all([good, bad]).wait()]
        [<class 'NoneType'>, <class 'KeyError'>]
    """
    collected = _checked(futures, "collect_all")
    label = f"collect_all of {len(collected)}"
    result = Race(collected, None, label, fails=False).start()
    for future in collected:
        future._hand_on()
    return result


def wait_each(futures: Sequence[Future[Any]]) -> None:
    """For the library: waits until all are completed, failed or not; an interrupt cancels them.

    Nobody else has them, and each call has a timeout of its own.
    """
    try:
        collect_all(futures).wait()
    except BaseException:
        for future in futures:
            future.cancel()
        raise


@waits_for_all
def wait_all(futures: Iterable[Future[T]], timeout: float | None = None) -> list[T]:
    """Blocks until all futures are completed and returns their values, in order.

    Args:
        futures: The futures.
        timeout: Seconds for all of them together; None waits until they are completed.

    Raises:
        CallTimeoutError: Some were not completed in time.
        WaitCycleError: The source that completes one of them waits for this very wait.
        BlockingCallError: On an event loop that telegrad runs.
        TypeError: One of them is no Future.
        BaseException: The error of the first future that fails, as soon as it fails.

    Example:
        >>> import math
        >>> from telegrad import rpc
        >>> with rpc.init_rpc("trainer"):
        ...     rpc.wait_all([rpc.rpc_async("trainer", math.sqrt, (x,)) for x in (4.0, 9.0)])
        [2.0, 3.0]
    """
    limit = seconds(timeout, math.inf)
    waited = _checked(futures, "wait_all")
    if barred() and not all(future.done() for future in waited):
        refuse_to_block("wait_all()", "write `await rpc.collect_all(futures)`")
    started, label = time.monotonic(), f"wait_all of {len(waited)}"
    race = Race(waited, None, label, as_values=True)
    result = race.start()
    try:
        if result.done() or result._block(limit):
            return result.value()
    except BaseException as error:
        race.call_off(None)
        for future in waited:
            future._hand_on()  # one error stands for all
        cut_own_frames(error)
        raise
    race.call_off(None)
    raise _late(f"{{}} of {len(waited)} futures", "wait_all()", waited, time.monotonic() - started)


def as_completed(futures: Iterable[Future[T]], timeout: float | None = None) -> AsCompleted[T]:
    """Returns an iterator over futures in the order in which they are completed, failed or not.

    Plain (`for`) and asynchronous (`async for`), from any thread or loop; several may share one.

    Args:
        futures: One that occurs twice comes twice.
        timeout: Seconds from now for all of them together; None waits until they are completed.

    Raises:
        TypeError: One of them is no Future. While it iterates: CallTimeoutError when they are not
            completed in time, WaitCycleError when none of them can be, and BlockingCallError where
            `for` would block a loop that telegrad runs.

    Example:
        >>> first, second = Future(), Future()
        >>> second.set_result("second"), first.set_result("first")
        (None, None)
        >>> [future.value() for future in as_completed([first, second])]
        ['first', 'second']
    """
    return AsCompleted(_checked(futures, "as_completed"), seconds(timeout, math.inf))


def first_n(futures: Iterable[Future[T]], k: int) -> Future[list[Future[T]]]:
    """Returns a future of the first `k` of `futures` that succeed, in the order in which they do.

    The others are left alone. An error of one that was not needed is nobody's.

    Args:
        futures: Futures of calls, or plain ones.
        k: From 0 to the number of futures.

    Returns:
        It fails with NotEnoughResultsError as soon as fewer than `k` can succeed.

    Raises:
        TypeError: One of them is no Future, or `k` no integer.
        ValueError: `k` is negative, or more than there are futures.

    Example:
        >>> slow, fast = Future(), Future()
        >>> fast.set_result("fast")
        >>> first_n([slow, fast], 1).wait() == [fast]
        True
    """
    raced = _checked(futures, "first_n")
    result = Race(raced, checked_k(k, len(raced)), f"first_n of {len(raced)}").start()
    for future in raced:
        future._hand_on()
    origin = origin_of_caller(sys._getframe(1))
    if origin is not None:
        result._watch(origin, None)
    return result


@final
class AsCompleted(Generic[T]):
    """The iterator that `as_completed` returns.

    Args:
        futures: The futures.
        limit: Seconds for all of them.

    Example:
        >>> first, second = Future(), Future()
        >>> second.set_result("second")
        >>> next(as_completed([first, second])).value()
        'second'
    """

    __slots__ = ("_arrivals", "_futures", "_limit", "_started")

    def __init__(self, futures: list[Future[T]], limit: float) -> None:
        self._arrivals = _Arrivals()
        self._futures: dict[int, Future[T]] = dict(enumerate(futures))  # guarded by its lock
        self._limit = limit
        self._started = time.monotonic()
        for place, future in enumerate(futures):
            future._call_when_done(Listener(self._arrivals.hear, place))

    def __iter__(self) -> Iterator[Future[T]]:
        return self

    def __aiter__(self) -> AsyncIterator[Future[T]]:
        return self

    def __next__(self) -> Future[T]:
        """Blocks until the next one is completed; see `as_completed`."""
        while self._futures:
            if (found := self._take()) is not None:
                return found
            if barred():
                instead = "write `async for future in rpc.as_completed(futures)`"
                refuse_to_block("as_completed()", instead)
            with self._waiting() as waiter:
                if not waiter._block(max(self._seconds_left(), 0.0)):
                    raise self._too_late()
                waiter.value()  # raises where the wait is part of a cycle
        raise StopIteration

    async def __anext__(self) -> Future[T]:
        """Waits on the running asyncio loop, whichever that is."""
        while self._futures:
            if (found := self._take()) is not None:
                return found
            left = self._seconds_left()
            with self._waiting() as waiter:
                try:
                    async with asyncio.timeout(None if left == math.inf else left):
                        await waiter
                except TimeoutError:
                    raise self._too_late() from None
        raise StopAsyncIteration

    def __del__(self) -> None:
        self._arrivals.over = True

    def _take(self) -> Future[T] | None:
        """Returns one that is completed, None if none is; wakes all readers after the last one."""
        arrivals, found = self._arrivals, None
        with critical.section, arrivals.lock:
            if arrivals.places:
                found = self._futures.pop(arrivals.places.popleft())
        if not self._futures:
            arrivals.wake()
        return found

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[Future[None]]:
        """Yields a future that is completed once one of them is, or none is left."""
        arrivals = self._arrivals
        waiter: Future[None] = new_future(None, "as_completed()")
        comes_from(waiter, Wait(self._futures.values()))
        with critical.section, arrivals.lock:
            arrivals.waiters.append(waiter)
        if arrivals.places or not self._futures:  # since `_take` looked
            waiter.try_set_result(None)
        try:
            yield waiter
        finally:
            with critical.section, arrivals.lock, contextlib.suppress(ValueError):
                arrivals.waiters.remove(waiter)

    def _seconds_left(self) -> float:
        return self._limit - (time.monotonic() - self._started)

    def _too_late(self) -> CallTimeoutError:
        with critical.section, self._arrivals.lock:
            left = list(self._futures.values())
        return _late("{} futures", "as_completed()", left, time.monotonic() - self._started)


@final
class _Arrivals:
    """The part of an iterator that its futures refer to: so there is no circle.

    Attributes:
        lock: Guards `places` and `waiters`.
        places: The places of the futures that are completed and were not taken, in order.
        waiters: The futures for which the readers of the iterator wait.
        over: True if the iterator is garbage, or will be soon.
    """

    __slots__ = ("lock", "over", "places", "waiters")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.places: deque[int] = deque()
        self.waiters: list[Future[None]] = []
        self.over = False

    def hear(self, place: int) -> None:
        """Counts a future that is completed."""
        with critical.section, self.lock:
            self.places.append(place)
        self.wake()

    def wake(self) -> None:
        """Lets all readers look again."""
        with critical.section, self.lock:
            waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            waiter.try_set_result(None)


def _late(
    words: str, verb: str, futures: Sequence[Future[Any]], elapsed: float
) -> CallTimeoutError:
    """Returns the error for a wait for several futures that has reached its timeout."""
    missing = [future._label for future in futures if not future.done()]
    among = f", among them {missing[0]}" if missing else ""
    return CallTimeoutError(
        f"{words.format(len(missing))} were not done after {elapsed:.3g} s of {verb}{among}; they "
        "go on",
        phase="waiting",
        elapsed=elapsed,
    )


def _checked(futures: Iterable[Future[T]], verb: str) -> list[Future[T]]:
    given: object = futures
    if isinstance(given, Future):
        raise TypeError(f"{verb} takes several futures, not one; write [future]")
    checked = list(futures)
    for place, future in enumerate(checked):
        if not isinstance(future, Future):
            raise TypeError(f"{verb} takes futures, but item {place} is {future!r}")
    return checked


# -- many calls at once: all of their values, or the first k; what is common is encoded once --


@gathers
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
        k: The number that must succeed; None for all.
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

    Example:
        >>> import math
        >>> from telegrad import rpc
        >>> from telegrad.testing import Cluster
        >>> calls = [("worker0", math.sqrt, (4.0,)), ("worker1", math.sqrt, (9.0,))]
        >>> with Cluster(2) as cluster:
        ...     cluster.call(0, lambda: rpc.gather(calls).wait())
        [2.0, 3.0]
    """
    agent = current_agent()
    given: object = calls
    if isinstance(given, Future):
        raise TypeError("gather takes several calls or futures, not one future; write [future]")
    seconds(timeout, math.inf)  # refuses 0, negatives and bools before anything is sent
    asked = _prepare(agent, calls, timeout)
    if k is not None:
        checked_k(k, len(asked))
    futures = _send_all(asked)
    futures_given = any(isinstance(each, Future) for each in asked)
    race = Race(
        futures,
        k,
        _label(len(asked), k),
        as_values=True,
        cancels=True,
        dispatch=agent.pool.submit,
    )
    result = race.start()
    for future in futures:
        future._hand_on()
    if futures_given and timeout is not None and not race.over:
        _bound(agent, race, result, timeout)
    return watched(agent, result)


Send: TypeAlias = Callable[[], Future[Any]]  # sends a call that is encoded

# The very same function and objects, to their encoding. The payload keeps them alive, so that no id
# in a key is used twice. `(x,)` is a new tuple each time, and `x` is not.
_Known: TypeAlias = dict[object, tuple[Prepared, object]]


def _prepare(
    agent: AgentCore, calls: Iterable[object], timeout: float | None
) -> list[Future[Any] | Send]:
    """Checks and encodes all calls before any of them is sent."""
    known: _Known = {}
    prepared: list[Future[Any] | Send] = []
    for place, call in enumerate(calls):
        try:
            prepared.append(
                call if isinstance(call, Future) else _request(agent, place, call, timeout, known)
            )
        except Exception as error:
            error.add_note(f"it is item {place} of the calls that were given to gather")
            raise
    return prepared


def _request(
    agent: AgentCore, place: int, call: object, timeout: float | None, known: _Known
) -> Send:
    """Encodes a call, unless an equal one was encoded already; returns what sends it."""
    if not isinstance(call, tuple) or not 2 <= len(call) <= 4:
        raise TypeError(
            f"a call is a tuple (to, func), (to, func, args) or (to, func, args, kwargs), or a "
            f"future, but item {place} is {call!r}"
        )
    to, func, *rest = call
    args = rest[0] if rest else ()
    kwargs = rest[1] if len(rest) > 1 else None
    peer = agent.members.find(to)
    function, payload = call_payload(func, args, kwargs)
    named = tuple((name, id(value)) for name, value in payload["kwargs"].items())
    key = id(func), tuple(map(id, payload["args"])), named
    if key not in known:
        known[key] = Prepared.of(payload), payload
    send, encoded = agent.calling.send, known[key][0]
    return partial(send, peer, CALL, encoded, function=function, timeout=timeout)


def _send_all(asked: Sequence[Future[Any] | Send]) -> list[Future[Any]]:
    """Sends them all; where one cannot be, those before it are cancelled."""
    futures: list[Future[Any]] = []
    try:
        futures.extend(each if isinstance(each, Future) else each() for each in asked)
    except BaseException:
        for future, each in zip(futures, asked, strict=False):
            if future is not each:
                future.cancel()
        raise
    return futures


def _bound(agent: AgentCore, race: Race, result: Future[list[Any]], timeout: float) -> None:
    """Ends it after some seconds: the futures that were given have no deadline of this call."""
    comes_from(result, None)  # a wait for it ends by itself

    def expire() -> None:
        race.call_off(
            CallTimeoutError(
                f"{result._label} was not done after {timeout:.3g} s; what it waited for was "
                "cancelled",
                phase="waiting",
                elapsed=timeout,
            )
        )

    result._call_when_done(agent.deadlines.after(timeout, expire).cancel)


def _label(count: int, k: int | None) -> str:
    return f"gather of {count}" if k is None else f"gather of {k} of {count}"
