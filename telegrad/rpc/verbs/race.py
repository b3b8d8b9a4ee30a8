"""A race of futures: won when enough have succeeded, lost when too few are left that can."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any, final

from telegrad.critical import critical
from telegrad.errors import NotEnoughResultsError
from telegrad.rpc.base.failure import fresh_copy
from telegrad.rpc.future.future import Future, Listener, new_future
from telegrad.rpc.future.waits import Dispatch, Wait, comes_from

NAMED_FAILURES = 10  # in one message; all of them are in its `failures`


@final
class Race:
    """Completes one future by the first `wanted` of several that succeed.

    A reply counts as what the callee says that it is: one that turns out to be undecodable raises
    where its value is read.

    Args:
        futures: The futures.
        wanted: The number that must succeed; None for all of them, and then the first error is the
            result's own.
        label: The name of the result in errors.
        as_values: True if the result has their values, in the order of `futures`; False if it has
            the futures themselves, in the order of success where not all are wanted.
        cancels: True to cancel those that are not needed, or no longer.
        fails: False to count a failure like a success.
        dispatch: Runs callbacks in a pool; None for that of the first future that has one.

    Attributes:
        over: True if it was won, lost or called off.

    Raises:
        TypeError: `wanted` is no integer.
        ValueError: `wanted` is negative or more than there are futures.
    """

    def __init__(
        self,
        futures: Sequence[Future[Any]],
        wanted: int | None,
        label: str,
        *,
        as_values: bool = False,
        cancels: bool = False,
        fails: bool = True,
        dispatch: Dispatch | None = None,
    ) -> None:
        self._wanted = len(futures) if wanted is None else checked_k(wanted, len(futures))
        self._all = wanted is None
        self._as_values = as_values
        self._cancels = cancels
        self._fails = fails
        dispatch = dispatch or next((f._dispatch for f in futures if f._dispatch), None)
        self._label = label
        self._lock = threading.Lock()  # guards all below
        # Both are given up when it is over, as the futures that run on still know this race.
        self._result: Future[list[Any]] | None = new_future(dispatch, label)
        self._futures = tuple(futures)
        self._spare = len(futures) - self._wanted  # may fail, and it is won all the same
        self._succeeded: list[int] = []
        self._failed: list[int] = []
        self.over = False

    def start(self) -> Future[list[Any]]:
        """Begins to listen to the futures; returns the future of the result."""
        result = self._result
        assert result is not None
        comes_from(result, Wait(self._futures) if self._fails else self._futures)
        if self._cancels:
            result._let_cancel(partial(self.call_off, None))
        for place, future in enumerate(self._futures):
            if self.over:
                break
            future._call_when_done(Listener(self.hear, place))
        if not self._wanted:
            self._end()
        return result

    def call_off(self, error: BaseException | None) -> None:
        """Ends it early; the result fails with `error`, if there is one. From any thread."""
        with critical.section, self._lock:
            if self.over:
                return
            futures, result = self._close()
        if error is not None:
            result.try_set_exception(error)
        self._cancel(futures, result)

    def hear(self, place: int) -> None:
        """Counts a future that is completed; in any thread, decodes nothing there."""
        with critical.section, self._lock:
            if self.over:
                return
            if self._fails and self._futures[place]._failed:
                self._failed.append(place)
                if len(self._failed) <= self._spare:
                    return
            else:
                self._succeeded.append(place)
                if len(self._succeeded) < self._wanted:
                    return
        self._end()

    def _end(self) -> None:
        with critical.section, self._lock:
            if self.over:
                return
            futures, result = self._close()
            won = len(self._succeeded) >= self._wanted
            succeeded = self._succeeded[: self._wanted]
        if not won:
            failures = [(place, futures[place]) for place in self._failed]
            result._run(partial(self._fail, result, failures))  # off the loop: it decodes replies
        else:
            places = sorted(succeeded) if self._all or self._as_values else succeeded
            winners = [futures[place] for place in places]
            if self._as_values:
                result._try_set_thunk(lambda: [future.value() for future in winners])
            else:
                result.try_set_result(winners)
        self._cancel(futures, result)

    def _close(self) -> tuple[tuple[Future[Any], ...], Future[list[Any]]]:
        """Takes the futures and the result; holds the lock."""
        self.over = True
        futures, self._futures = self._futures, ()
        result, self._result = self._result, None
        assert result is not None
        return futures, result

    def _cancel(self, futures: Sequence[Future[Any]], result: Future[Any]) -> None:
        """Cancels the futures that run; last of all, since callbacks of users may run here."""
        if self._cancels:
            for future in futures:
                if not future.done():
                    future._lend(result._dispatch)  # a plain one, and this may be a loop
                    future.cancel()

    def _fail(self, result: Future[list[Any]], failures: Sequence[tuple[int, Future[Any]]]) -> None:
        errors = [future.exception() or RuntimeError("no error") for _, future in failures]
        if self._all:
            first = fresh_copy(errors[0])
            if first is not errors[0]:
                place, future = failures[0]
                first.add_note(f"it is that of item {place}, {future._label}, in {self._label}")
            result.try_set_exception(first)
            return
        named = [
            f"item {place}, {future._label}: {type(error).__name__}: {error}"
            for (place, future), error in zip(failures[:NAMED_FAILURES], errors, strict=False)
        ]
        if len(failures) > NAMED_FAILURES:
            named.append(f"and {len(failures) - NAMED_FAILURES} more")
        lost = NotEnoughResultsError(
            f"{len(failures)} of {self._wanted + self._spare} failed in {self._label}, so fewer "
            f"than {self._wanted} can succeed: {'; '.join(named)}",
            failures=errors,
        )
        lost.__cause__ = errors[0]
        result.try_set_exception(lost)


def checked_k(k: object, count: int) -> int:
    """Returns `k`, checked.

    Raises:
        TypeError: It is no integer.
        ValueError: It is negative, or more than there are.
    """
    if isinstance(k, bool) or not isinstance(k, int):
        raise TypeError(f"k must be an integer, not {k!r} ({type(k).__name__})")
    if not 0 <= k <= count:
        raise ValueError(f"k must be from 0 to the number of futures (k: {k}, futures: {count})")
    return k
