"""Workers that come late, leave, are lost and come back; who is told; who is evicted."""

from __future__ import annotations

import functools
import logging
import math
import threading
import time
from typing import Any

import pytest

from telegrad import collectives as dist
from telegrad import rpc
from telegrad.errors import (
    CallTimeoutError,
    EvictedError,
    OwnerLostError,
    RendezvousError,
    RendezvousTimeoutError,
    WorkerLostError,
)
from telegrad.rendezvous import JoinedJob
from telegrad.rpc import seams
from telegrad.testing import leaks
from tests.patience import with_more_time
from tests.repeated import TRANSPORTS
from tests.rpc import remote_code
from tests.rpc.membership_world import LIMIT, Heard, World, who

QUICK = 1.0  # lost_after where a test waits for silence; all run in this process, and stall as one


@pytest.fixture(params=TRANSPORTS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make_world(worlds: list[World], kind: str) -> functools.partial[World]:
    def make(size: int, **options: Any) -> World:
        world = World(kind, size, **options)
        worlds.append(world)
        return world

    return functools.partial(make)


MakeWorld = functools.partial[World]


# -- start when ----------------------------------------------------------------------------------


def test_it_starts_with_a_quorum_and_the_others_join_later(make_world: MakeWorld) -> None:
    world = make_world(4)
    early = [world.start(r, start_when=2) for r in (0, 2)]
    first, second = (each.result(LIMIT) for each in early)
    assert [info.name for info in first.members.living()] == ["w0", "w2"]
    heard = [Heard(first), Heard(second)]
    third = world.join(1, start_when=2)
    for each in heard:
        assert each.next() == ("join", third.info)
    assert who(first, "w1") == "w1"
    assert who(third, "w2") == "w2"
    fourth = world.join(3)
    assert [each.next() for each in heard] == [("join", fourth.info)] * 2
    assert who(fourth, "w0") == "w0"
    assert [info.rank for info in fourth.members.living()] == [0, 1, 2, 3]
    assert fourth.members.world_size == 4


def test_who_has_started_may_call_one_that_still_waits(make_world: MakeWorld) -> None:
    """The call is served when the callee has started, too."""
    world = make_world(3)
    first = world.join(0, start_when=1)
    heard = Heard(first)
    waiting = world.start(1)
    assert heard.next()[1].name == "w1"
    future = seams.call(first, "w1", remote_code.who)
    assert not future.done()
    world.join(2)
    assert future.wait(LIMIT) == "w1"
    waiting.result(LIMIT)


@pytest.mark.parametrize(
    ("start_when", "words", "missing"),
    [
        (2, r"start any 1 of ranks 0, 2", ("rank 0: never", "rank 2: never")),
        (["w2", "w1"], r"start worker 'w2'", ("worker 'w2': never",)),
        (None, r"start ranks 0, 2", ("rank 0: never", "rank 2: never")),
    ],
    ids=repr,
)
def test_who_is_missing_is_said(
    make_world: MakeWorld, start_when: object, words: str, missing: tuple[str, ...]
) -> None:
    world = make_world(3)

    def join(limit: float) -> None:
        with pytest.raises(RendezvousTimeoutError, match=words) as info:
            world.join(1, start_when=start_when, init_timeout=limit)
        assert all(map(str.startswith, info.value.missing, missing))
        assert len(info.value.missing) == len(missing)

    with_more_time(join, 0.2, 2.0, 10.0)  # to reach the coordinator
    leaks.wait_until_gone("members", lambda: world.coordinator.members)


def test_more_workers_than_there_can_be(make_world: MakeWorld) -> None:
    with pytest.raises(ValueError, match="start_when=3 is out of range for a world size of 2"):
        make_world(2).join(0, start_when=3)


def test_shutdown_waits_for_who_is_there_and_not_for_who_never_came(make_world: MakeWorld) -> None:
    world = make_world(3)
    first, second = (each.result(LIMIT) for each in [world.start(r, start_when=2) for r in (0, 1)])
    ending = world.submit(first.shutdown)
    assert who(second, "w0") == "w0"
    second.shutdown()
    ending.result(LIMIT)


# -- who is told -------------------------------------------------------------------------------


def test_a_worker_that_is_killed_and_comes_back(make_world: MakeWorld) -> None:
    world = make_world(3)
    first, second, third = world.join_all()
    heard = [Heard(first), Heard(third)]
    old = second.info
    waiting = seams.call(first, "w1", remote_code.hold, ("killed",), timeout=math.inf)
    assert remote_code.entered("killed")
    world.kill(second)
    for each in heard:
        what, (worker, error) = each.next()
        assert (what, worker) == ("loss", old)
        assert isinstance(error, WorkerLostError)
        assert (error.worker, error.incarnation, error.left) == ("w1", old.incarnation, False)
    with pytest.raises(WorkerLostError, match="'w1'"):
        waiting.wait(LIMIT)
    again = world.join(1)
    assert (again.info.name, again.info.rank) == (old.name, old.rank)
    assert again.info.incarnation > old.incarnation
    for each in heard:
        assert each.next() == ("join", again.info)
    for agent in (first, third):
        assert who(agent, "w1") == "w1"
        assert agent.members.find("w1") == agent.members.find(1) == again.info
        with pytest.raises(WorkerLostError):
            who(agent, old)
    assert again.statistics().calls_served == 2
    assert who(again, "w2") == "w2"


def test_nobody_is_told_when_all_shut_down_together(make_world: MakeWorld) -> None:
    world = make_world(3)
    agents = world.join_all()
    heard = [Heard(agent) for agent in agents]
    for agent in agents:
        assert who(agents[0], agent.info.name) == agent.info.name
    for ending in [world.submit(agent.shutdown) for agent in agents]:
        ending.result(LIMIT)
    assert [each.names() for each in heard] == [[]] * 3


def test_who_goes_alone_since_the_coordinator_is_lost_has_left(make_world: MakeWorld) -> None:
    """The goodbye of a graceful shutdown must not look like the end of the job."""
    world = make_world(2)
    first, second = world.join_all()
    assert who(first, "w1") == "w1"
    heard = Heard(first)
    world.coordinator.close()
    second.shutdown()
    assert heard.next() == ("leave", second.info)
    with pytest.raises(WorkerLostError, match="since it has lost the coordinator"):
        who(first, "w1")


def test_a_worker_on_top(make_world: MakeWorld) -> None:
    world = make_world(2)
    first, _ = world.join_all()
    heard = Heard(first)
    late = world.join(7, late=True)
    assert (late.info.name, late.info.rank) == ("w7", 2)
    assert heard.next() == ("join", late.info)
    assert who(first, "w7") == "w7"
    assert first.members.world_size == 3


# -- callbacks -----------------------------------------------------------------------------------


def test_callbacks_run_in_order_and_may_call_and_fail(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world(4)
    first = world.join(0, start_when=1)
    order: list[str] = []
    done = threading.Event()

    def joined(worker: rpc.WorkerInfo) -> None:
        order.append(f"begin {worker.name}")
        order.append(rpc.rpc_sync(worker, remote_code.who))
        raise RuntimeError("not today")

    def lost(worker: rpc.WorkerInfo, error: WorkerLostError) -> None:
        order.append(f"lost {worker.name}")
        done.set()

    with seams.use_agent(first):
        rpc.on_join(joined)
        rpc.on_loss(lost)
    others = [world.join(r, start_when=1) for r in (1, 2, 3)]
    leaks.wait_until_gone("joins", lambda: [] if len(order) == 6 else order)
    world.kill(others[0])
    assert done.wait(LIMIT)
    names = ["w1", "w2", "w3"]
    assert order == [word for name in names for word in (f"begin {name}", name)] + ["lost w1"]
    assert [each.levelno for each in caplog.records if "callback" in each.message] == [
        logging.ERROR
    ] * 3


def test_a_callback_that_was_removed_is_not_called(make_world: MakeWorld) -> None:
    world = make_world(3)
    first = world.join(0, start_when=1)
    removed, kept = Heard(first), Heard(first)
    for remove in removed.remove * 2:
        remove()
    world.join(1, start_when=1)
    assert kept.next()[0] == "join"
    assert removed.names() == []


def test_what_is_no_callback(make_world: MakeWorld) -> None:
    agent = make_world(1).join(0)

    async def later(worker: rpc.WorkerInfo) -> None: ...

    with seams.use_agent(agent):
        for wrong in (later, None):
            with pytest.raises(TypeError, match="on_join takes a plain function"):
                rpc.on_join(wrong)  # type: ignore[arg-type]


# -- eviction, cuts ------------------------------------------------------------------------------


def test_who_was_cut_off_is_evicted_and_may_come_back(make_world: MakeWorld) -> None:
    """It has lost everybody by silence; once it can, it asks, and hears that it was given up.

    Every verb says so then: by rights it is this worker that is lost, and not the others.
    """
    world = make_world(3, lost_after=QUICK)
    first, _, third = world.join_all()
    heard, others = Heard(third), Heard(first)
    forming = [world.submit(form, each) for each in (first, third)]
    _, group = (each.result(LIMIT) for each in forming)
    store = third.attachments[JoinedJob].store
    with seams.use_agent(third):
        fetched = rpc.remote("w0", remote_code.who)
        assert fetched.to_here() == "w0"
        created = rpc.remote("w1", remote_code.hold, ("creating",), timeout=math.inf)
        waiting = rpc.rpc_async("w0", remote_code.hold, ("cut",), timeout=math.inf)
        asking = world.submit(store.get, "what nobody sets", LIMIT)
        assert remote_code.entered("creating")
        assert remote_code.entered("cut")
        world.network.partition("w2")
        what, (worker, _) = others.next()
        assert (what, worker) == ("loss", third.info)
        with pytest.raises(WorkerLostError, match="'w0'"):
            waiting.wait(LIMIT)
        lost = [heard.next() for _ in range(2)]
        assert {(what, each[0].name) for what, each in lost} == {("loss", "w0"), ("loss", "w1")}
        with pytest.raises(OwnerLostError):
            created.to_here()
        world.wait_until_dropped("w2")
        world.network.heal()
        what, (worker, error) = heard.next()
        assert (what, worker, type(error)) == ("loss", third.info, EvictedError)
        for verb in (
            fetched.to_here,
            created.to_here,
            fetched.rpc_async().upper().wait,
            functools.partial(dist.barrier, group),
            functools.partial(dist.new_group, [0, 2]),
            functools.partial(store.set, "a", b"1"),
            functools.partial(store.get, "a", LIMIT),
        ):
            with pytest.raises(EvictedError, match="gave up 'w2'"):
                verb()
    with pytest.raises(EvictedError, match="gave up 'w2'.*start it again"):
        who(third, "w0")
    with pytest.raises((RendezvousError, EvictedError)):
        asking.result(LIMIT)
    world.submit(third.shutdown).result(LIMIT)
    again = world.join(2)
    assert others.next() == ("join", again.info)
    assert who(again, "w0") == "w0"
    assert heard.names() == []


def test_every_wait_of_an_evicted_worker_says_so(make_world: MakeWorld) -> None:
    """Those for a worker that has heard of it, too: what it says is held until it is known why."""
    world = make_world(3)
    first, second, third = world.join_all()
    with seams.use_agent(third):
        fetched = rpc.remote("w0", remote_code.who)
        assert fetched.to_here() == "w0"
        created = rpc.remote("w1", remote_code.hold, ("creating",))
        fetching = world.submit(created.to_here)
    heard, others = Heard(third), [Heard(first), Heard(second)]
    waiting = [
        seams.call(third, name, remote_code.hold, (f"evicted {name}",), timeout=math.inf)
        for name in ("w0", "w1", "w2")
    ]
    served = seams.call(first, "w2", remote_code.hold, ("served",), timeout=math.inf)
    for name in ("evicted w0", "evicted w1", "evicted w2", "served", "creating"):
        assert remote_code.entered(name)
    world.drop(third)
    for each in others:
        what, (worker, _) = each.next()
        assert (what, worker) == ("loss", third.info)
    with pytest.raises(WorkerLostError, match="'w2'"):
        served.wait(LIMIT)
    for wait in (*(future.wait for future in waiting), fetching.result):
        with pytest.raises(EvictedError, match="gave up 'w2'"):
            wait(LIMIT)
    what, (worker, error) = heard.next()
    assert (what, worker) == ("loss", third.info)
    assert isinstance(error, EvictedError)
    with seams.use_agent(third):
        for verb in (
            functools.partial(rpc.rpc_sync, "w0", remote_code.who),
            functools.partial(rpc.remote, "w1", remote_code.who),
            fetched.to_here,
            created.to_here,
        ):
            with pytest.raises(EvictedError, match="gave up 'w2'"):
                verb()
    assert who(first, "w1") == "w1"
    remote_code.gates.open_all()  # it serves them to the end, for nobody
    third.shutdown()
    assert heard.names() == []


def test_an_evicted_worker_reads_no_value_that_it_was_told_before_its_losses_are_known(
    make_world: MakeWorld,
) -> None:
    """The coordinator's word counts while the loop has not closed the connections yet."""
    world = make_world(2)
    _, second = world.join_all()
    busy, blocked = threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        busy.wait(LIMIT)

    with seams.use_agent(second):
        told = rpc.remote("w0", remote_code.who)
        assert told.to_here() == "w0"
        second.deadlines.after(0.0, block)
        assert blocked.wait(LIMIT)
        try:
            second.evict(EvictedError("the coordinator gave up 'w1'", worker="w1"))
            with pytest.raises(EvictedError, match="gave up 'w1'"):
                told.to_here()
        finally:
            busy.set()


def test_a_value_that_was_made_in_time_is_there_though_its_creator_heard_late(
    make_world: MakeWorld,
) -> None:
    """The owner decides. The creator has given it up, until the late reply tells it."""
    world = make_world(2)
    creator, owner = world.join_all()
    with seams.use_agent(creator):
        assert rpc.rpc_sync("w1", remote_code.who) == "w1"
        rref = rpc.remote("w1", remote_code.hold, ("in time",), timeout=1.5)
        assert remote_code.entered("in time")
        world.network.partition("w1")
        with seams.use_agent(owner):
            made = rpc.remote("w1", remote_code.who)
            assert made.to_here() == "w1"
            remote_code.release("in time")
            leaks.wait_until_gone("calls", lambda: owner.waits_for())
        with pytest.raises(CallTimeoutError):
            rref.to_here()
        assert not rref.confirmed_by_owner()
        world.network.heal()
        leaks.wait_until_gone("doubts", lambda: [] if rref.confirmed_by_owner() else [rref])
        assert rref.to_here() == "in time"
        rref.release()


def form(agent: seams.AgentCore) -> dist.ProcessGroup:
    with seams.use_agent(agent):
        return dist.new_group([0, 2])


@pytest.mark.parametrize(
    "cut",
    [
        pytest.param(("w0", "w1"), id="to"),
        pytest.param(("w1", "w0"), id="fro", marks=pytest.mark.long),
    ],
)
def test_a_one_way_cut_is_a_loss_at_both_ends(make_world: MakeWorld, cut: tuple[str, str]) -> None:
    """What still arrives does not echo what was said: the way there and back is broken."""
    world = make_world(3, lost_after=QUICK)
    agents = world.join_all()
    heard = [Heard(agent) for agent in agents]
    waiting = []
    for here, there in ((0, 1), (1, 0)):
        gate = f"one way {cut} {here}"
        future = seams.call(agents[here], f"w{there}", remote_code.hold, (gate,), timeout=math.inf)
        assert remote_code.entered(gate)
        waiting.append(future)
    world.network.partition(*cut, one_way=True)
    for future, lost in zip(waiting, ("w1", "w0"), strict=True):
        with pytest.raises(WorkerLostError, match=rf"worker '{lost}'.*silent for"):
            future.wait(LIMIT)
    for rank, lost in ((0, "w1"), (1, "w0")):
        what, (worker, _) = heard[rank].next()
        assert (what, worker.name) == ("loss", lost)
        assert who(agents[rank], "w2") == "w2"
        assert who(agents[2], f"w{rank}") == f"w{rank}"
    assert heard[2].names() == []


@pytest.mark.parametrize(
    "cut",
    [
        ("w0", "w1", False),
        pytest.param(("w0", "w1", True), marks=pytest.mark.long),
        pytest.param(("w1", "w0", True), marks=pytest.mark.long),
    ],
)
def test_a_cut_between_two_that_reach_the_coordinator(
    make_world: MakeWorld, cut: tuple[str, str, bool]
) -> None:
    """The one that waits longer is told by the coordinator; the third one hears nothing of it."""
    these, those, one_way = cut
    world = make_world(3)
    patient = {"lost_after": 1000.0}
    joining = [world.start(0, lost_after=QUICK), *(world.start(r, **patient) for r in (1, 2))]
    first, second, third = (each.result(LIMIT) for each in joining)
    heard = [Heard(agent) for agent in (first, second, third)]
    waiting = seams.call(second, "w0", remote_code.hold, ("split",), timeout=math.inf)
    assert remote_code.entered("split")
    world.network.partition(these, those, one_way=one_way)
    what, (worker, _) = heard[0].next()
    assert (what, worker) == ("loss", second.info)
    what, (worker, error) = heard[1].next()
    assert (what, worker) == ("loss", first.info)
    assert "has given up this worker: silent for" in error.reason
    with pytest.raises(WorkerLostError, match="'w0'.*has given up this worker"):
        waiting.wait(LIMIT)
    statistics = world.coordinator.statistics()
    assert (statistics.members, statistics.splits) == (3, 1)
    for agent, others in ((first, "w2"), (second, "w2"), (third, "w0"), (third, "w1")):
        assert who(agent, others) == others
    world.network.heal()
    for agent, lost in ((first, "w1"), (second, "w0")):  # for good
        with pytest.raises(WorkerLostError, match=f"'{lost}'"):
            who(agent, lost)
    remote_code.release("split")  # w0 would wait for it, though nobody does
    for ending in [world.submit(agent.shutdown) for agent in (first, second, third)]:
        ending.result(LIMIT)
    assert [each.names() for each in heard] == [[]] * 3


def test_the_coordinator_waits_as_long_as_a_worker_says(make_world: MakeWorld) -> None:
    """The launcher's knows no options; a worker that computes for long in C would be dropped."""
    world = make_world(2, lost_after=QUICK)
    joining = [world.start(r, lost_after=seconds) for r, seconds in ((0, 1000.0), (1, QUICK / 2))]
    for each in joining:
        each.result(LIMIT)
    cut = time.monotonic()
    world.network.partition("coordinator")
    world.wait_until_dropped("w1")
    assert time.monotonic() - cut > 0.9 * QUICK  # no less than its own time
    assert [each.info.name for each in world.coordinator.members] == ["w0"]


def test_who_is_given_up_while_it_joins(make_world: MakeWorld) -> None:
    """It is told once it has joined."""
    world = make_world(3)
    first = world.join(0, start_when=1)
    heard = Heard(first)
    joining = world.start(1)
    what, second = heard.next()
    assert what == "join"
    first.exchange.fence(second, "as a test wants it")
    assert heard.next()[0] == "loss"
    third = world.join(2)
    agent = joining.result(LIMIT)
    with pytest.raises(WorkerLostError, match="has given up this worker: as a test wants it"):
        who(agent, "w0")
    assert who(agent, "w2") == "w2"
    assert who(third, "w0") == "w0"
