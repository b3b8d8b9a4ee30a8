"""The audit log: a record of each admission, refusal and refused call, off every hot path.

    any thread     record() ──▶ limit on floods of refusals ──▶ waiting records
    audit thread                            waiting records ──▶ logger "telegrad.audit"

Only the audit thread runs the program's log handlers, which may be as slow as they like.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, final

from telegrad.critical import critical
from telegrad.transport.log import get_logger
from telegrad.wire import escaped

CONNECTION_ADMITTED: Final = "connection.admitted"
CONNECTION_REFUSED: Final = "connection.refused"  # an incoming connection
DIAL_REFUSED: Final = "dial.refused"  # a dial of this worker, by either side
CALL_REFUSED: Final = "call.refused"
PEER_CUT_OFF: Final = "peer.cut_off"  # a peer that had proved itself
LOST: Final = "audit.lost"

# Of refusals for the same reason, or of the same caller, this many are recorded at once and one a
# second afterwards: at 500 bytes each that is 43 MB a day, and covers one job's honest mistakes.
BURST = 100
PER_SECOND = 1.0
SUMMARY_SECONDS = 10.0  # between two records that count the refusals held back
MOST_FLOODS = 256  # counted separately; further ones are counted together
# The most records that wait for slow handlers: about 1 KB each, and more than the connections of
# a job of two thousand workers that start at once.
MOST_WAITING = 10_000
MOST_TEXT = 500  # characters of a field: strangers choose their names
IDLE_SECONDS = 1.0  # without a record, after which the thread ends; the next one starts another
SHOWN = ("peer", "caller", "function", "address", "suppressed")  # fields of the plain-text form
FLUSH_SECONDS = 0.5  # for which a shutdown waits until the records are handed over

# Reasons that honest workers meet: two dialled each other at once, or one came back.
ORDINARY: Final = frozenset(
    {
        "DUPLICATE",
        "FENCED",
        "INCARNATION",
        "NAME",
        "UNFINISHED",
        "UNKNOWN_SESSION",
        "UNKNOWN_STREAM",
    }
)

_LOGGER = logging.getLogger("telegrad.audit")
_own_logger = get_logger(__name__)

_Record: TypeAlias = dict[str, Any]
_Key: TypeAlias = tuple[str, str, str]


@final
@dataclass(slots=True)
class _Flood:
    """A budget of records of one kind, and the number of records held back since it ran out."""

    left: float
    at: float
    suppressed: int = 0
    since: float = 0.0


@final
class _Meter:
    """Keeps floods of refusals out of the log and counts them. Pure; not thread-safe."""

    def __init__(self) -> None:
        self._floods: dict[_Key, _Flood] = {}
        self._due: float | None = None

    @property
    def due(self) -> float | None:
        """The time at which `summaries` has something to report; None if nothing is held back."""
        return self._due

    def takes(self, key: _Key, now: float) -> bool:
        """Returns True if a record may be made now; otherwise counts it as held back."""
        flood = self._floods.get(key)
        if flood is None:
            flood = self._begin(key, now)
        flood.left = min(BURST, flood.left + (now - flood.at) * PER_SECOND)
        flood.at = now
        if flood.left >= 1:
            flood.left -= 1
            return True
        if not flood.suppressed:
            flood.since = now
        flood.suppressed += 1
        if self._due is None:
            self._due = now + SUMMARY_SECONDS
        return False

    def summaries(self, now: float) -> list[tuple[_Key, int, float]]:
        """Returns the number of records held back and the seconds, for each kind; resets both."""
        self._due = None
        held = [(key, flood) for key, flood in self._floods.items() if flood.suppressed]
        told = [(key, flood.suppressed, now - flood.since) for key, flood in held]
        for _, flood in held:
            flood.suppressed = 0
        return told

    def _begin(self, key: _Key, now: float) -> _Flood:
        if len(self._floods) >= MOST_FLOODS:
            self._forget_calm(now)
        if len(self._floods) >= MOST_FLOODS:
            key = (key[0], "", "")
        return self._floods.setdefault(key, _Flood(BURST, now))

    def _forget_calm(self, now: float) -> None:
        calm = BURST / PER_SECOND
        for key, flood in list(self._floods.items()):
            if not flood.suppressed and now - flood.at >= calm:
                del self._floods[key]


@final
class Audit:
    """Hands records to the logger `telegrad.audit`, in a daemon thread while there are any.

    A record is one line of JSON as the message, and the same as a dict in `record.telegrad`. Of a
    flood of refusals the first ones are recorded. The rest is counted in one record with
    `suppressed` every 10 s. Refusals are WARNING. Admissions are DEBUG, and so are refusals for
    reasons that honest workers meet; these are INFO if the peer named no worker.

    If neither that logger nor any above it has a handler, this module's logger writes a warning as
    plain text instead. A refused dial is not even written so, as the dialler gets the error itself.

    Args:
        worker: The name of the worker that records.
        clock: A clock in seconds, by which floods are recognised.
    """

    def __init__(self, worker: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._worker = worker
        self._clock = clock
        self._changed = threading.Condition()  # guards all attributes below
        self._waiting: deque[tuple[int, _Record]] = deque()
        self._meter = _Meter()
        self._lost = 0
        self._thread: threading.Thread | None = None
        self._closed = self._given_up = False

    def record(self, event: str, **fields: object) -> None:
        """Records an event; from any thread. It never blocks, and costs nothing if nobody listens.

        Args:
            event: The kind of event, such as `"connection.refused"`.
            fields: Plain values. Those that are None are left out; long texts are cut short.
        """
        level = _level(event, fields.get("reason"), fields.get("peer"))
        if not _LOGGER.isEnabledFor(level):
            return
        now = self._clock()
        with critical.section, self._changed:
            if self._closed:
                return
            told_later = self._meter.due is not None
            if event == CONNECTION_ADMITTED or self._meter.takes(_key(event, fields), now):
                if len(self._waiting) >= MOST_WAITING:
                    self._lost += 1
                    return
                self._waiting.append((level, self._written(event, fields)))
            elif told_later:
                return
            self._changed.notify()
            self._start_thread()

    def close(self, timeout: float = FLUSH_SECONDS) -> None:
        """Hands over what waits for at most `timeout` seconds, then drops the rest. Idempotent."""
        with critical.section, self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        thread.join(timeout)
        with critical.section, self._changed:
            self._given_up = True

    def _written(self, event: str, fields: Mapping[str, object]) -> _Record:
        written = {name: _short(each) for name, each in fields.items() if each is not None}
        return {"event": event, "time": round(time.time(), 6), "worker": self._worker, **written}

    def _start_thread(self) -> None:
        """Starts the thread unless it runs. The caller holds the lock."""
        if self._thread is None:
            name = f"telegrad-audit-{self._worker}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            with contextlib.suppress(RuntimeError):  # no thread to be had now; retried next time
                thread.start()
                self._thread = thread

    # In the audit thread.

    def _run(self) -> None:
        while (ready := self._next()) is not None:
            for level, record in ready:
                self._hand_over(level, record)

    def _next(self) -> list[tuple[int, _Record]] | None:
        """Waits for a record, or for the time to count those that were held back.

        Returns:
            The records to hand over now; None if nothing is left to do: then the next one starts
            another thread.
        """
        with critical.section, self._changed:
            if not self._waiting and not self._closed:
                due = self._meter.due
                left = IDLE_SECONDS if due is None else max(0.0, due - self._clock())
                self._changed.wait(left)
            ready = [self._waiting.popleft()] if self._waiting else []
            ready += self._summaries()
            if self._given_up or (not ready and self._meter.due is None):
                self._thread = None
                return None
            return ready

    def _summaries(self) -> list[tuple[int, _Record]]:
        """Returns the records that count what was held back or lost, if it is time for them."""
        records = []
        now, due, last = self._clock(), self._meter.due, self._closed and not self._waiting
        if due is not None and (last or now >= due):
            for (event, reason, caller), count, seconds in self._meter.summaries(now):
                told = {
                    "caller": caller or None,
                    "reason": reason or None,
                    "suppressed": count,
                    "seconds": round(seconds, 3),
                }
                records.append((_level(event, reason), self._written(event, told)))
        if self._lost and not self._waiting:
            lost, self._lost = self._lost, 0
            records.append((logging.WARNING, self._written(LOST, {"suppressed": lost})))
        return records

    def _hand_over(self, level: int, record: _Record) -> None:
        try:
            if not _LOGGER.hasHandlers():  # Python's last resort would print the JSON
                if record["event"] != DIAL_REFUSED:
                    _own_logger.log(level, "%s", _in_words(record))
                return
            line = json.dumps(record, default=str)
            _LOGGER.log(level, line, extra={"telegrad": record})
        except Exception:  # in the program's own handler: the next record may fare better
            with contextlib.suppress(Exception):
                _own_logger.exception("a handler of the logger telegrad.audit failed")


def _level(event: str, reason: object, peer: object = None) -> int:
    """Returns DEBUG for events of a healthy job: each of its workers meets each other one."""
    if event == CONNECTION_ADMITTED:
        return logging.DEBUG
    if reason not in ORDINARY:
        return logging.WARNING
    return logging.INFO if peer is None else logging.DEBUG


def _key(event: str, fields: Mapping[str, object]) -> _Key:
    return event, str(fields.get("reason", "")), str(fields.get("caller", ""))


def _in_words(record: _Record) -> str:
    facts = [f"{name} {record[name]!r}" for name in SHOWN if name in record]
    why = record.get("words") or record.get("reason")
    return f"{record['event']}: " + ", ".join(facts) + (f": {escaped(str(why))}" if why else "")


def _short(value: object) -> object:
    if isinstance(value, str) and len(value) > MOST_TEXT:
        return f"{value[:MOST_TEXT]}..."
    return value
