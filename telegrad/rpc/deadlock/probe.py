"""Finds calls that have waited for long, and ends those that wait for each other.

This is the shell around `protocol`: `graph` finds how the calls that are served here wait, and the
agent carries the messages. Calls that end soon cause no work and no message: a worker looks five
times a second, and begins to follow a wait when it has seen it for a second.
"""

from __future__ import annotations

import contextlib
import functools
import time
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, final, get_args, get_type_hints

from telegrad.errors import DecodeError, UnknownWorkerError, WaitCycleError, WorkerLostError
from telegrad.rpc.base.served_call import ServedCall
from telegrad.rpc.call.pending_call import PendingCall
from telegrad.rpc.deadlock import protocol as wait_cycle
from telegrad.rpc.deadlock.graph import Stamps, WaitPath, served_id, ways
from telegrad.rpc.deadlock.protocol import (
    Branch,
    Break,
    Check,
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

PROBE = "rpc.wait_probe"
CHECK = "rpc.wait_check"
BREAK = "rpc.wait_break"
KINDS: dict[type, str] = {Probe: PROBE, Check: CHECK, Break: BREAK}

M = TypeVar("M", Probe, Check, Break)

# A cycle is reported within 2 s: the second look at the latest sees it, and the first look that
# comes a second later follows it.
LOOK_SECONDS = 0.2
STALE_SECONDS = 1.0
# A look at 10,000 calls that wait takes 50 ms. The next look comes so much later that all looks
# take at most this share of a core.
SHARE = 0.05


class _Seen(NamedTuple):
    """A call that the last look found waiting, and the time since which each way was there."""

    call: ServedCall
    since: dict[tuple[Token, tuple[Branch, ...]], Since]


@final
class WaitProbes:
    """For the library: finds calls that wait for each other, at one worker.

    Args:
        agent: The agent of this worker.

    Attributes:
        followed: The number of probes that were sent or handed on here.
        reported: The number of waits that were ended here because they were part of a cycle.
    """

    def __init__(self, agent: AgentCore) -> None:
        self._agent = agent
        self._me = agent.info
        self._seen: dict[ServedId, _Seen] = {}  # replaced by each look; those never overlap
        self._looked = 0.0  # the time of the last look
        self._oldest: ServedCall | None = None
        self._stamps = Stamps()
        self.followed = self.reported = 0
        agent.inbox.register(PROBE, self._on_probe)
        agent.inbox.register(CHECK, self._on_check)
        agent.inbox.register(BREAK, self._on_break)

    def begin(self) -> None:
        """Begins to look; goes on until the agent ends."""
        self._agent.deadlines.after(LOOK_SECONDS, self._glance)

    def _glance(self) -> None:
        """Starts a look if a call was served at the last glance already; on the loop."""
        before, self._oldest = self._oldest, self._agent.serving.oldest()
        if self._oldest is not None and self._oldest is before:
            self._agent.pool.submit(self._look)
            return
        self._seen = {}
        self._agent.deadlines.after(LOOK_SECONDS, self._glance)

    def _look(self) -> None:
        """Records how calls wait, and follows those that have waited for long; in the pool."""
        started, busy = time.monotonic(), time.thread_time()
        try:
            self._follow_waits(started)
        finally:  # a program's own futures may raise
            took = time.thread_time() - busy
            self._agent.deadlines.after(max(LOOK_SECONDS, took / SHARE), self._glance)

    def _follow_waits(self, started: float) -> None:
        before, seen = self._seen, dict[ServedId, _Seen]()
        due: list[tuple[ServedId, Step]] = []
        for place, call in enumerate(self._agent.serving.calls()):  # the oldest first
            found = self._ways(call)
            if not found:
                continue
            name = served_id(self._me, call)
            known = before[name].since if name in before else {}
            seen[name] = _Seen(call, {})
            for way in found:
                since = known.get((way.token, way.branches), (started, place))
                seen[name].since[way.token, way.branches] = since
                if _doublings(started - since[0]) > _doublings(self._looked - since[0]):
                    due.append((name, Step(way.token, way.branches, since, way.text)))
        self._seen, self._looked = seen, started
        for name, step in due:
            self._send(wait_cycle.probes(self._me, name, step))

    def _steps(self, call: ServedId, *, to_be_sure: bool = False) -> list[Step]:
        """Returns the waits of a call now, without those that the last look has not seen."""
        seen = self._seen.get(call)
        if seen is None:
            return []
        return [
            Step(way.token, way.branches, since, way.text)
            for way in self._ways(seen.call, to_be_sure=to_be_sure)
            if (since := seen.since.get((way.token, way.branches))) is not None
        ]

    def _ways(self, call: ServedCall, *, to_be_sure: bool = False) -> list[WaitPath]:
        return ways(self._me, call, self._is_mine, self._stamps, to_be_sure=to_be_sure)

    def _is_mine(self, call: PendingCall | ServedCall) -> bool:
        if isinstance(call, ServedCall):
            return self._agent.serving.serves(call)
        return self._agent.calling.is_pending(call)

    def _on_probe(self, peer: WorkerInfo, envelope: Envelope) -> None:
        del peer
        probe = _read(Probe, self._agent.messages.read(envelope))
        self._send(wait_cycle.on_probe(self._me, probe, self._steps(probe.todo[0].to)))

    def _on_check(self, peer: WorkerInfo, envelope: Envelope) -> None:
        del peer
        check = _read(Check, self._agent.messages.read(envelope))
        self._agent.pool.submit(self._check, check)

    def _check(self, check: Check) -> None:
        """Looks at a hop once more, at all limits too, which takes long; in the pool."""
        steps = self._steps(check.hops[check.place].call, to_be_sure=True)
        self._send(wait_cycle.on_check(check, steps))

    def _on_break(self, peer: WorkerInfo, envelope: Envelope) -> None:
        """Ends the wait of a hop; on the loop, ahead of the replies of calls that this frees."""
        del peer
        broken = _read(Break, self._agent.messages.read(envelope))
        self._send(wait_cycle.on_break(broken))
        hop = broken.hops[broken.place]
        seen = self._seen.get(hop.call)
        for way in () if seen is None else self._ways(seen.call):
            if wait_cycle.is_at(hop, way.token, way.branches):
                self.reported += 1
                for future in way.breaks:
                    # Its callbacks may be the user's: they run in the pool.
                    future._lend(self._agent.pool.submit)
                    future.try_set_exception(_error(broken))
                return

    def _send(self, sends: wait_cycle.Sends) -> None:
        for to, message in sends:
            self.followed += isinstance(message, Probe)
            with contextlib.suppress(WorkerLostError, UnknownWorkerError):
                self._agent.messages.post(to, KINDS[type(message)], _plain(message))


def _doublings(age: float) -> int:
    """Returns how many times a wait of that age was followed: after 1 s, 2 s, 4 s, ..."""
    return int(age / STALE_SECONDS).bit_length()


def attach_to(agent: AgentCore) -> None:
    """For the library: gives an agent its probes; `WaitProbes.begin` starts them once it serves."""
    agent.attachments.attach(WaitProbes(agent))


def _error(broken: Break) -> WaitCycleError:
    hops = (*broken.hops[broken.place :], *broken.hops[: broken.place])
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


# -- messages as lists, and lists as messages ------------------------------------------------------


def _plain(value: object) -> object:
    """Returns a message as lists of lists, numbers and words."""
    if isinstance(value, WorkerInfo):
        return [value.name, value.rank, value.incarnation]
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _read(kind: type[M], body: object) -> M:
    """Returns the message of a kind that `_plain` has written.

    Raises:
        DecodeError: The body is no such message.
    """
    message: M = _build(kind, body)
    chains = [message.hops, *(hop.to for hop in message.hops)]
    if isinstance(message, Probe):
        chains.append(message.todo)
    elif not 0 <= message.place < len(message.hops):
        raise DecodeError("the place in a chain of waits is not in it")
    if not all(0 < len(chain) <= wait_cycle.MAX_HOPS for chain in chains):
        raise DecodeError("a chain of waits is empty, or too long")
    return message


def _build(kind: Any, value: object) -> Any:
    """Returns a value of a type from its list: a tuple, or a class by its fields."""
    if kind in (int, float, str):
        if type(value) is not kind:
            raise DecodeError(f"a message about waits has no {kind.__name__} where one belongs")
        return escaped(value) if isinstance(value, str) else value
    parts = get_args(kind) or _fields(kind)
    if not isinstance(value, list) or (parts[-1] is not ... and len(value) != len(parts)):
        raise DecodeError(f"the body of a message about waits is not a list of {len(parts)}")
    if parts[-1] is ...:
        parts = parts[:1] * len(value)
    built = tuple(map(_build, parts, value))
    return built if get_args(kind) else kind(*built)


@functools.cache
def _fields(kind: type) -> tuple[Any, ...]:
    return tuple(get_type_hints(kind).values())
