"""Looks after calls that have waited for long, and ends those that wait for each other.

The shell around `protocol`: `graph` says how the calls that are served here wait, the agent
carries the messages. Nothing is done, and nothing sent, about calls that end soon: a worker looks
five times a second, and begins to follow a wait when it has seen it for a second.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, TypeAlias, final

from telegrad.errors import DecodeError, UnknownWorkerError, WaitCycleError, WorkerLostError
from telegrad.rpc.call.served_call import ServedCall
from telegrad.rpc.call.table import PendingCall
from telegrad.rpc.deadlock import protocol as wait_cycle
from telegrad.rpc.deadlock.graph import Stamps, WaitPath, served_id, ways
from telegrad.rpc.deadlock.protocol import (
    Branch,
    Break,
    Check,
    EndWait,
    Hop,
    Message,
    Probe,
    ServedId,
    Since,
    Step,
    Token,
)
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope, escaped

if TYPE_CHECKING:
    from telegrad.rpc.agent.core import AgentCore

__all__ = ["WaitProbes", "attach_to"]

PROBE = "rpc.wait_probe"
CHECK = "rpc.wait_check"
BREAK = "rpc.wait_break"

# A cycle is to be reported within 2 s: it is seen at the second look at the latest, and followed
# at the first one that comes a second later.
LOOK_SECONDS = 0.2
STALE_SECONDS = 1.0
# To look at 10,000 calls that wait takes 50 ms. The next look is so much later that looking takes
# at most this share of a core.
SHARE = 0.05

_Key: TypeAlias = tuple[Token, tuple[Branch, ...]]


@final
class _Seen:
    """A call that the last look found waiting; its ways, since when, and how old when next sent."""

    __slots__ = ("call", "next_age", "since")

    def __init__(self, call: ServedCall) -> None:
        self.call = call
        self.since: dict[_Key, Since] = {}
        self.next_age: dict[_Key, float] = {}

    def note(self, way: WaitPath, before: _Seen | None, now: Since) -> None:
        """Notes a way, which may have been there at the look before."""
        key = (way.token, way.branches)
        known = before is not None and key in before.since
        self.since[key] = before.since[key] if before is not None and known else now
        self.next_age[key] = before.next_age[key] if before is not None and known else STALE_SECONDS

    def is_due(self, way: WaitPath, now: float) -> bool:
        """Tells whether a way is to be followed now: after 1 s, 2 s, 4 s, ..."""
        key = (way.token, way.branches)
        age = now - self.since[key][0]
        if age < self.next_age[key]:
            return False
        self.next_age[key] = 2 * age
        return True


@final
class WaitProbes:
    """For the library: finds calls that wait for each other, at one worker.

    Args:
        agent: The agent of this worker.
    """

    def __init__(self, agent: AgentCore) -> None:
        self._agent = agent
        self._me = agent.info
        self._seen: dict[ServedId, _Seen] = {}  # replaced by each look; those never overlap
        self._oldest: ServedCall | None = None
        self._stamps = Stamps()
        self._reported = 0
        self._followed = 0
        agent.inbox.register(PROBE, self._on_probe)
        agent.inbox.register(CHECK, self._on_check)
        agent.inbox.register(BREAK, self._on_break)

    @property
    def followed(self) -> int:
        """The number of probes that were sent or handed on here."""
        return self._followed

    @property
    def reported(self) -> int:
        """The number of waits that were ended here because they were part of a cycle."""
        return self._reported

    def begin(self) -> None:
        """Begins to look, and looks until the agent ends."""
        self._agent.deadlines.after(LOOK_SECONDS, self._glance)

    def _glance(self) -> None:
        """On the loop: is anything older than the last glance? Most often nothing is."""
        before, self._oldest = self._oldest, self._agent.serving.oldest()
        if self._oldest is not None and self._oldest is before:
            self._agent.pool.submit(self._look)
            return
        self._seen = {}
        self._agent.deadlines.after(LOOK_SECONDS, self._glance)

    def _look(self) -> None:
        """In the pool: notes how calls wait, and follows those that have done so for long."""
        started, busy = time.monotonic(), time.thread_time()
        try:
            self._follow_waits(started)
        finally:  # whatever a program's own futures do to it
            took = time.thread_time() - busy
            self._agent.deadlines.after(max(LOOK_SECONDS, took / SHARE), self._glance)

    def _follow_waits(self, started: float) -> None:
        before, seen = self._seen, dict[ServedId, _Seen]()
        due: list[tuple[ServedId, WaitPath]] = []
        for place, call in enumerate(self._agent.serving.calls()):  # the oldest first
            found = self._ways(call)
            if not found:
                continue
            name = served_id(self._me, call)
            each = seen[name] = _Seen(call)
            for way in found:
                each.note(way, before.get(name), (started, place))
                if each.is_due(way, started):
                    due.append((name, way))
        self._seen = seen
        for name, way in due:
            step = self._step(seen[name], way)
            if step is not None:
                self._send(wait_cycle.probes(self._me, name, step))

    def _steps(self, call: ServedId) -> list[Step]:
        """Returns how a call waits now; a wait that the last look has not seen is too young."""
        seen = self._seen.get(call)
        if seen is None:
            return []
        steps = (self._step(seen, way) for way in self._ways(seen.call))
        return [step for step in steps if step is not None]

    def _ways(self, call: ServedCall, *, to_be_sure: bool = False) -> list[WaitPath]:
        return ways(self._me, call, self._is_mine, self._stamps, to_be_sure=to_be_sure)

    def _is_mine(self, call: PendingCall | ServedCall) -> bool:
        if isinstance(call, ServedCall):
            return self._agent.serving.serves(call)
        return self._agent.calling.is_pending(call)

    def _step(self, seen: _Seen, way: WaitPath) -> Step | None:
        since = seen.since.get((way.token, way.branches))
        return None if since is None else Step(way.token, way.branches, since, way.text)

    def _on_probe(self, peer: WorkerInfo, envelope: Envelope) -> None:
        del peer
        probe = _probe(self._agent.messages.read(envelope))
        self._send(wait_cycle.on_probe(self._me, probe, self._steps(probe.todo[0].to)))

    def _on_check(self, peer: WorkerInfo, envelope: Envelope) -> None:
        del peer
        check = Check(*_round(self._agent.messages.read(envelope)))
        self._agent.pool.submit(self._check, check)

    def _check(self, check: Check) -> None:
        """In the pool: to be sure takes its time."""
        call = check.hops[check.place].call
        seen = self._seen.get(call)
        if seen is None:
            return
        sure = self._ways(seen.call, to_be_sure=True)
        steps = [step for way in sure if (step := self._step(seen, way)) is not None]
        self._send(wait_cycle.on_check(check, steps))

    def _on_break(self, peer: WorkerInfo, envelope: Envelope) -> None:
        """On the loop, at once: the replies of calls that it lets go come after it."""
        del peer
        end, sends = wait_cycle.on_break(Break(*_round(self._agent.messages.read(envelope))))
        self._send(sends)
        self._end(end)

    def _end(self, end: EndWait) -> None:
        call = end.hops[end.place].call
        if wait_cycle.ended(end, self._steps(call)):
            return
        seen = self._seen.get(call)
        found = [] if seen is None else self._ways(seen.call)
        for way in found:
            hop = end.hops[end.place]
            if way.token == hop.token and tuple(each.to for each in way.branches) == hop.to:
                self._reported += 1
                for future in way.breaks:
                    future._lend(
                        self._agent.pool.submit
                    )  # its callbacks are no affair of the loop's
                    future.try_set_exception(_error(end))
                return

    def _send(self, sends: wait_cycle.Sends) -> None:
        for to, message in sends:
            kind, body = _write(message)
            self._followed += kind == PROBE
            with contextlib.suppress(WorkerLostError, UnknownWorkerError):
                self._agent.messages.post(to, kind, body)


def attach_to(agent: AgentCore) -> None:
    """For the library: gives an agent its probes; `WaitProbes.begin` starts them once it serves."""
    agent.attachments.attach(WaitProbes(agent))


def _error(end: EndWait) -> WaitCycleError:
    hops = (*end.hops[end.place :], *end.hops[: end.place])
    chain = [hop.text for hop in hops]
    what = (
        "this call waits for itself and cannot end"
        if len(chain) == 1
        else f"{len(chain)} calls wait for each other, and none of them can end"
    )
    return WaitCycleError(
        f"{what}: {'; '.join(chain)}, which closes the circle; one of them has to return without "
        "that wait: hand the value on as an RRef, or leave the rest to a call of its own",
        chain=chain,
    )


# Reading and writing -------------------------------------------------------------------------


def _write(message: Message) -> tuple[str, list[object]]:
    hops: list[object] = [
        [
            list(hop.call),
            list(hop.token),
            [list(to) for to in hop.to],
            [*_plain(hop.worker)],
            hop.text,
        ]
        for hop in message.hops
    ]
    match message:
        case Probe(todo, _, since, forks):
            ways = [[list(branch.to), [*_plain(branch.peer)]] for branch in todo]
            return PROBE, [ways, hops, [*since], forks]
        case Check(_, place):
            return CHECK, [hops, place]
        case Break(_, place):
            return BREAK, [hops, place]


def _plain(worker: WorkerInfo) -> tuple[str, int, int]:
    return worker.name, worker.rank, worker.incarnation


def _probe(body: object) -> Probe:
    todo, hops, since, forks = _fields(body, 4)
    seconds, place = _fields(since, 2)
    if not isinstance(seconds, float) or type(place) is not int or type(forks) is not int:
        raise DecodeError("the age of a wait is no number")
    branches = tuple(
        Branch(_served(to), _worker(peer)) for to, peer in (_fields(each, 2) for each in _few(todo))
    )
    return Probe(branches, _hops(hops), (seconds, place), forks)


def _round(body: object) -> tuple[tuple[Hop, ...], int]:
    hops, place = _fields(body, 2)
    read = _hops(hops)
    if type(place) is not int or not 0 <= place < len(read):
        raise DecodeError("the place in a chain of waits is not in it")
    return read, place


def _hops(value: object) -> tuple[Hop, ...]:
    return tuple(_hop(*_fields(each, 5)) for each in _few(value))


def _hop(call: object, token: object, to: object, worker: object, text: object) -> Hop:
    if not isinstance(text, str):
        raise DecodeError("a wait does not say whose it is")
    branches = tuple(_served(each) for each in _few(to))
    return Hop(_served(call), tuple(_integers(token)), branches, _worker(worker), escaped(text))


def _worker(value: object) -> WorkerInfo:
    name, *numbers = _fields(value, 3)
    if not isinstance(name, str):
        raise DecodeError("a wait does not say whose it is")
    return WorkerInfo(name, *_integers(numbers))


def _few(value: object) -> list[object]:
    if not isinstance(value, list) or not 0 < len(value) <= wait_cycle.MAX_HOPS:
        raise DecodeError("a chain of waits is no list, or too long")
    return value


def _served(value: object) -> ServedId:
    return ServedId(*_integers(_fields(value, 4)))


def _integers(values: object) -> list[int]:
    if not isinstance(values, list) or not all(type(each) is int for each in values):
        raise DecodeError("a message about waits holds something else than integers")
    return values


def _fields(value: object, count: int) -> list[object]:
    if not isinstance(value, list) or len(value) != count:
        raise DecodeError(f"the body of a message about waits is not a list of {count}")
    return value
