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
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, replace
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, final

from telegrad.doctor.facts import DoctorPair, DoctorWorker, Speed, of_plain, pair_of, rounds
from telegrad.doctor.judgement import judge, suspects
from telegrad.doctor.probe import DoctorProbe, in_words
from telegrad.doctor.report import DoctorReport
from telegrad.errors import TelegradError
from telegrad.rpc.seams import current_agent, seconds
from telegrad.transport import Dial, refuse_to_block
from telegrad.types import WorkerInfo

if TYPE_CHECKING:
    from telegrad.rpc.seams import AgentCore

T = TypeVar("T")
_Pair: TypeAlias = tuple[WorkerInfo, WorkerInfo]

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
    refuse_to_block("doctor.examine()", "write `await rpc.to_thread(doctor.examine)`")
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
        self._me = agent.info
        self._infos = agent.members.living()
        self._probe = agent.attachments[DoctorProbe]
        self._end = end
        bound = agent.options.lost_after
        self._dial_seconds = min(LONGEST_DIAL_SECONDS, DIAL_SHARE * bound)
        self._pair_seconds = min(LONGEST_PAIR_SECONDS, PAIR_SHARE * bound)
        self._via: dict[WorkerInfo, WorkerInfo] = {}  # the worker to ask through; itself if direct
        self._workers: dict[WorkerInfo, DoctorWorker] = {}
        self._dials: defaultdict[_Pair, Dial] = defaultdict(Dial)
        self._speeds: dict[_Pair, Speed] = {}

    def run(self) -> DoctorReport:
        """Returns the report."""
        self._dial_from_here()
        described = self._together(self._described, self._infos)
        self._workers = dict(zip(self._infos, described, strict=True))
        for upwards in (True, False):  # so that no two dials cross
            for dialled in self._together(partial(self._dialled, upwards=upwards), self._infos):
                self._dials.update(dialled)
        for each in rounds(combinations(self._infos, 2), lambda at: self._workers[at].host_key):
            self._speeds.update(zip(each, self._together(self._measured, each), strict=True))
        named = {each.name: each for each in self._infos}
        for slow in suspects(described, self._pairs()):  # again: something else may have run before
            pair = named[slow.one], named[slow.other]
            self._speeds[pair] = self._speeds[pair].or_better(self._measured(pair))
        pairs = self._pairs()
        return DoctorReport(tuple(described), tuple(pairs), *judge(described, pairs))

    def _pairs(self) -> list[DoctorPair]:
        workers, dials = self._workers, self._dials
        return [
            pair_of(workers[a], workers[b], dials[a, b], dials[b, a], self._speeds[a, b])
            for a, b in combinations(self._infos, 2)
        ]

    def _dial_from_here(self) -> None:
        """Dials all others from here, and finds for each a worker through which it can be asked."""
        others = [each for each in self._infos if each != self._me]
        dials = zip(others, self._probe.reach(others, self._dial_seconds), strict=True)
        self._dials.update({(self._me, other): dial for other, dial in dials})
        up = [other for (_, other), dial in self._dials.items() if dial.transport and not dial.loss]
        self._via = dict.fromkeys(others, up[0]) if up else {}
        self._via |= {each: each for each in (self._me, *up)}

    def _described(self, worker: WorkerInfo) -> DoctorWorker:
        listens = worker == self._me or bool(self._dials[self._me, worker].endpoints)
        return self._ask(
            worker,
            lambda sent: of_plain(DoctorWorker, sent, info=worker, silence=""),
            lambda words: DoctorWorker(info=worker, silence=words, listens=listens),
            self._dial_seconds,
            ask="facts",
        )

    def _dialled(self, worker: WorkerInfo, *, upwards: bool) -> dict[_Pair, Dial]:
        """Makes a worker that answers dial the others of higher rank, or of lower."""
        peers = [each for each in self._infos if each != worker]
        peers = [each for each in peers if (each.rank > worker.rank) is upwards]
        if not peers or self._workers[worker].silence:
            return {}
        dials = self._ask(
            worker,
            lambda sent: [of_plain(Dial, each) for each in sent],
            lambda words: [Dial(words=f"{worker.name!r} did not say: {words}")] * len(peers),
            self._dial_seconds,
            ask="reach",
            peers=list(map(astuple, peers)),
        )
        return {(worker, peer): dial for peer, dial in zip(peers, dials, strict=False)}

    def _measured(self, pair: _Pair) -> Speed:
        """Makes one of two workers measure their session, if there is one."""
        one, other = pair
        if not (self._dials[one, other].transport or self._dials[other, one].transport):
            return Speed()
        if time.monotonic() >= self._end:
            return Speed(words=OUT_OF_TIME)
        asked = [each for each in (pair, (other, one)) if not self._workers[each[0]].silence]
        if not asked:
            return Speed(words="neither of the two could be asked")
        by, peer = asked[0]
        speed = self._ask(
            by,
            lambda sent: _said_by(by, of_plain(Speed, sent)),
            lambda words: Speed(words=f"{by.name!r} did not say: {words}"),
            self._pair_seconds,
            ask="speed",
            peer=astuple(peer),
        )
        return speed if by == one else speed.turned

    def _ask(
        self,
        worker: WorkerInfo,
        read: Callable[[Any], T],
        fail: Callable[[str], T],
        limit: float,
        **body: Any,
    ) -> T:
        """Asks a worker, through another one if necessary.

        Args:
            worker: The worker to ask.
            read: Reads the answer, which may be anything.
            fail: Makes an answer of the reason for which there is none.
            limit: Seconds that the worker has for it.
            body: The question.
        """
        via = self._via.get(worker)
        if via is None:
            return fail("no session with it is up, neither from here nor from a worker that is")
        body["limit"], wait = limit, limit + ANSWER_SECONDS
        if via != worker:
            body = {"ask": "forward", "for": astuple(worker), "body": body, "limit": wait}
            wait += ANSWER_SECONDS
        try:
            return read(self._probe.ask(via, body, wait))
        except TelegradError as error:
            return fail(in_words(error))
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
            return fail(f"it answered garbage ({error!r:.200})")

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


def _said_by(worker: WorkerInfo, speed: Speed) -> Speed:
    """Names the worker that says why a measurement is missing."""
    return replace(speed, words=f"{worker.name!r} says: {speed.words}") if speed.words else speed
