"""`doctor.examine()`: examines every pair of the job's workers, called on any one of them.

    describe   every worker: its name, its host, its endpoints
    dial       each pair, first from the lower rank, then from the higher, so that no two dials
               cross; nothing is posted, so that no worker is given up because of it
    measure    each pair with a session: round trip, then bandwidth both ways; a host takes part
               in one measurement at a time

Workers that cannot be reached from here are asked through a worker that reaches them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, final

from telegrad.doctor.facts import (
    DoctorPair,
    DoctorWorker,
    Speed,
    of_plain,
    pair_of,
    rounds,
)
from telegrad.doctor.judgement import judge, suspects
from telegrad.doctor.probe import DoctorProbe, in_words
from telegrad.doctor.report import DoctorReport
from telegrad.errors import BlockingCallError, TelegradError
from telegrad.rpc.seams import current_agent, seconds
from telegrad.transport import Dial, on_own_loop
from telegrad.types import WorkerInfo

if TYPE_CHECKING:
    from telegrad.rpc.seams import AgentCore

__all__ = ["attach_to", "examine"]

T = TypeVar("T")
_Reaches: TypeAlias = dict[tuple[WorkerInfo, WorkerInfo], Dial]

# A network with longer dials is not fit for remote calls. Both limits stay well below `lost_after`,
# so that no worker is given up because the doctor asked it.
LONGEST_DIAL_SECONDS, DIAL_SHARE = 3.0, 0.3
LONGEST_PAIR_SECONDS, PAIR_SHARE = 4.0, 0.5
ANSWER_SECONDS = 2.0  # on top of the requested time; a busy interpreter answers late
MOST_THREADS = 64  # that wait for answers
OUT_OF_TIME = "not measured: the doctor's time was over; give it more with timeout="


def examine(timeout: float | None = None) -> DoctorReport:
    """Examines every pair of the job's workers, and reports problems with their remedies.

    It finds round trip, bandwidth both ways, address, transport with the reason for it, names in
    certificates, and the result of dials from either side. None of the user's code runs,
    `RpcOptions.callables` does not apply, and no worker is given up because of it: a pair that
    cannot communicate is a row of the report. Call it on one worker at a time, while the job is
    idle: it measures the bandwidth that the job leaves. One pair takes about 0.1 s on a quick
    network; pairs without a host in common are measured at the same time (docs/doctor.md).

    Args:
        timeout: Seconds for everything, approximately; None for `RpcOptions.timeout`. Whatever was
            not measured by then is a row that tells so.

    Returns:
        The report: `print(report)`, `report.ok`, `report.problems`.

    Raises:
        BlockingCallError: On an event loop that telegrad runs.
        ValueError: The timeout is invalid.
        NotInitializedError: No agent runs here.
        AgentForkedError: This is a forked child of the process that the agent runs in.

    Example:
        >>> from telegrad import doctor
        >>> from telegrad.testing import Cluster
        >>> with Cluster(2) as cluster:
        ...     report = cluster.call(0, doctor.examine)
        ...     report.ok, len(report.pairs)
        (True, 1)
    """
    if on_own_loop():
        raise BlockingCallError(
            "doctor.examine() would block a loop of telegrad's; write `await "
            "rpc.to_thread(doctor.examine)`"
        )
    agent = current_agent()
    limit = seconds(timeout, agent.options.timeout)
    return _Examination(agent, time.monotonic() + limit).run()


def attach_to(agent: AgentCore) -> None:
    """For the library: makes it possible to examine an agent."""
    agent.attachments.attach(DoctorProbe(agent))


@final
class _Examination:
    """One run of the doctor.

    Args:
        agent: The agent on which it was called.
        end: The deadline, on the monotonic clock.
    """

    def __init__(self, agent: AgentCore, end: float) -> None:
        self._agent = agent
        self._me = agent.info
        self._probe = agent.attachments[DoctorProbe]
        self._end = end
        bound = agent.options.lost_after
        self._dial_seconds = min(LONGEST_DIAL_SECONDS, DIAL_SHARE * bound)
        self._pair_seconds = min(LONGEST_PAIR_SECONDS, PAIR_SHARE * bound)
        self._via: dict[WorkerInfo, WorkerInfo] = {}  # the worker to ask through; itself if direct

    def run(self) -> DoctorReport:
        """Returns the report."""
        infos = self._agent.members.living()
        own = self._reached_from_here(infos)
        workers = [
            replace(each, listens=bool(own[each.info].endpoints)) if each.silence else each
            for each in self._together(self._described, infos)
        ]
        asked = [each.info for each in workers if not each.silence]
        reaches = self._reaches(infos, asked, own)
        hosts = {each.info: each.host_id or each.name for each in workers}
        speeds: dict[tuple[WorkerInfo, WorkerInfo], Speed] = {}
        for each in rounds(combinations(infos, 2), hosts.__getitem__):
            measured = self._together(lambda pair: self._measured(pair, asked, reaches), each)
            speeds.update(zip(each, measured, strict=True))
        pairs = _pairs(workers, reaches, speeds)
        named = {each.name: each.info for each in workers}
        for slow in suspects(workers, pairs):  # again: something else may have run before
            pair = named[slow.one], named[slow.other]
            speeds[pair] = speeds[pair].or_better(self._measured(pair, asked, reaches))
        pairs = _pairs(workers, reaches, speeds)
        problems, notes = judge(workers, pairs)
        return DoctorReport.of(workers, pairs, problems, notes)

    def _reached_from_here(self, infos: Sequence[WorkerInfo]) -> dict[WorkerInfo, Dial]:
        """Dials all others from here, and finds for each a worker through which it can be asked."""
        others = [each for each in infos if each != self._me]
        own = dict(zip(others, self._probe.reach(others, self._dial_seconds), strict=True))
        up = [each for each in others if own[each].transport and not own[each].loss]
        self._via = {each: each for each in (self._me, *up)}
        for each in others:
            if each not in self._via and up:
                self._via[each] = up[0]
        return own

    def _described(self, worker: WorkerInfo) -> DoctorWorker:
        try:
            plain = self._ask(worker, {"ask": "facts"}, self._dial_seconds)
            return replace(of_plain(DoctorWorker, plain), info=worker, silence="")
        except _UNANSWERED as error:
            return DoctorWorker(info=worker, silence=_words(error))

    def _reaches(
        self,
        infos: Sequence[WorkerInfo],
        asked: Sequence[WorkerInfo],
        own: dict[WorkerInfo, Dial],
    ) -> _Reaches:
        """Makes each worker dial the others: those of higher rank first, then those of lower."""
        found: _Reaches = {(self._me, other): reach for other, reach in own.items()}
        for upwards in (True, False):
            peers = {
                worker: [each for each in infos if (each.rank > worker.rank) is upwards]
                for worker in asked
            }
            askers = [each for each in asked if any(peer != each for peer in peers[each])]
            lists = self._together(
                lambda each, peers=peers: self._dialled(each, peers[each]),  # type: ignore[misc]
                askers,
            )
            for worker, reaches in zip(askers, lists, strict=True):
                others = [each for each in peers[worker] if each != worker]
                found.update(
                    {(worker, peer): reach for peer, reach in zip(others, reaches, strict=False)}
                )
        return found

    def _dialled(self, worker: WorkerInfo, peers: Sequence[WorkerInfo]) -> list[Dial]:
        others = [[each.name, each.rank, each.incarnation] for each in peers if each != worker]
        body = {"ask": "reach", "peers": others, "limit": self._dial_seconds}
        try:
            plain = self._ask(worker, body, self._dial_seconds)
            return [of_plain(Dial, each) for each in plain]
        except _UNANSWERED as error:
            return [Dial(words=f"{worker.name!r} did not say: {_words(error)}")] * len(others)

    def _measured(
        self,
        pair: tuple[WorkerInfo, WorkerInfo],
        asked: Sequence[WorkerInfo],
        reaches: _Reaches,
    ) -> Speed:
        """Makes one of two workers measure their session, if there is one."""
        one, other = pair
        there, back = (
            reaches.get((one, other), Dial()),
            reaches.get((other, one), Dial()),
        )
        if not (there.transport or back.transport):
            return Speed()
        if time.monotonic() >= self._end:
            return Speed(words=OUT_OF_TIME)
        for by, peer in ((one, other), (other, one)):
            if by in asked:
                body = {
                    "ask": "speed",
                    "peer": [peer.name, peer.rank, peer.incarnation],
                    "limit": self._pair_seconds,
                }
                try:
                    speed = of_plain(Speed, self._ask(by, body, self._pair_seconds))
                except _UNANSWERED as error:
                    return Speed(words=f"{by.name!r} did not say: {_words(error)}")
                return speed if by == one else speed.turned
        return Speed(words="neither of the two could be asked")

    def _ask(self, worker: WorkerInfo, body: dict[str, Any], limit: float) -> Any:
        """Asks a worker, through another one if necessary.

        Raises:
            TelegradError: The worker does not answer.
            KeyError: No worker can ask it.
        """
        via = self._via[worker]
        wait = limit + ANSWER_SECONDS
        if via != worker:
            named = [worker.name, worker.rank, worker.incarnation]
            body = {"ask": "forward", "for": named, "body": body, "limit": wait}
            wait += ANSWER_SECONDS
        return self._probe.ask(via, body, wait)

    def _together(self, func: Callable[[Any], T], over: Sequence[Any]) -> list[T]:
        """Calls a function with each of these at once; the calls wait for other workers."""
        if len(over) < 2:
            return [func(each) for each in over]
        pool = ThreadPoolExecutor(min(len(over), MOST_THREADS), "telegrad-doctor")
        try:
            results = list(pool.map(func, over))
        except BaseException:  # after Ctrl-C the pending calls are not waited for
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        pool.shutdown()
        return results


# Errors of a missing answer, or of an answer that may be anything.
_UNANSWERED = (TelegradError, ValueError, TypeError, LookupError, AttributeError, OverflowError)


def _words(error: Exception) -> str:
    if isinstance(error, KeyError):
        return "no session with it is up, neither from here nor from a worker that is"
    if isinstance(error, TelegradError):
        return in_words(error)
    return f"it answered garbage ({error!r})"


def _pairs(
    workers: Sequence[DoctorWorker],
    reaches: _Reaches,
    speeds: dict[tuple[WorkerInfo, WorkerInfo], Speed],
) -> list[DoctorPair]:
    known, nothing = {each.info: each for each in workers}, Dial()
    return [
        pair_of(
            known[one],
            known[other],
            reaches.get((one, other), nothing),
            reaches.get((other, one), nothing),
            speed,
        )
        for (one, other), speed in sorted(speeds.items(), key=_by_rank)
    ]


def _by_rank(item: tuple[tuple[WorkerInfo, WorkerInfo], Speed]) -> tuple[int, int]:
    (one, other), _ = item
    return one.rank, other.rank
