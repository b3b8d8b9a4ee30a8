"""Shutting down in every state: in a call, interrupted, at exit, before and after all else, forked."""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from telegrad import _distributed, rpc
from telegrad.errors import (
    BlockingCallError,
    CallTimeoutError,
    EvictedError,
    JoinCancelledError,
    NotInitializedError,
    WorkerLostError,
)
from telegrad.rendezvous import CallOff
from telegrad.rpc import seams
from telegrad.rpc.base import life
from telegrad.rpc.seams import call_off_joins, set_process_agent
from telegrad.testing import leaks
from telegrad.transport import loop
from tests.conftest import Programs, unused_port
from tests.rpc import remote_code
from tests.rpc.call import cancel_code
from tests.rpc.conftest import Job, MakeJob
from tests.rpc.membership_world import World
from tests.rpc.stream import stream_code
from tests.rpc.turns import turn

TOKEN = {"TELEGRAD_TOKEN": "a token that only the tests use"}


WAITS, BLOCKS = "would wait for the very call", "would block a loop of telegrad's"
NESTED = remote_code.shuts_down_in_a_nested_call


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        (lambda: rpc.rpc_sync("w1", remote_code.shuts_down_in_the_pool, (True,)), f"'w1' {WAITS}"),
        (lambda: rpc.rpc_sync("w1", remote_code.shuts_down_off_the_loop), f"'w1' {WAITS}"),
        (lambda: rpc.rpc_sync("w1", NESTED, ("w0",)), f"'w0' {WAITS}"),
        (lambda: rpc.rpc_sync("w1", NESTED, ("w1",)), f"'w1' {WAITS}"),
        (lambda: list(rpc.stream("w1", remote_code.shuts_down_between_items)), WAITS),
        (lambda: rpc.rpc_sync("w1", remote_code.shuts_down), BLOCKS),
        (lambda: list(rpc.stream("w1", remote_code.shuts_down_between_async_items)), BLOCKS),
    ],
)
def test_in_a_call_that_is_served_it_is_refused(
    job: Job, verb: Callable[[], object], words: str
) -> None:
    """It would wait for its caller, which waits for it: until the deadline of the call."""
    with seams.use_agent(job.agents[0]):
        with pytest.raises(BlockingCallError, match=words):
            verb()
        assert rpc.rpc_sync("w1", remote_code.who) == "w1"
    assert not any(agent.life.ended for agent in job.agents)


def test_in_a_call_that_is_served_one_may_leave_at_once(job: Job) -> None:
    with seams.use_agent(job.agents[0]):
        with pytest.raises(WorkerLostError, match="left without a graceful shutdown"):
            rpc.rpc_sync("w1", remote_code.shuts_down_in_the_pool, (False,))
        assert rpc.rpc_sync("w2", remote_code.who) == "w2"
    job.agents[1].shutdown()  # waits for the thread that still ends it
    assert job.agents[1].life.ended


def test_in_the_callback_of_a_future_it_is_legal(make_job: MakeJob) -> None:
    agent = make_job(1).agents[0]
    held = seams.call(
        agent, "w0", remote_code.hold, ("callback",)
    )  # so that the pool runs what follows
    ended = held.then(lambda done: agent.shutdown())
    remote_code.release("callback")
    assert ended.wait(20) is None
    assert agent.life.ended


def test_in_a_task_on_a_loop_of_the_users_it_blocks_that_loop(make_job: MakeJob) -> None:
    agent = make_job(1).agents[0]
    order: list[str] = []

    async def end() -> None:
        asyncio.get_running_loop().call_soon(order.append, "the loop goes on")
        with seams.use_agent(agent):
            rpc.shutdown()
        order.append("it has ended")

    async def run() -> None:
        await asyncio.create_task(end())
        await turn()

    asyncio.run(run())
    assert order == ["it has ended", "the loop goes on"]
    assert agent.life.ended


@pytest.fixture
def world() -> Iterator[World]:
    world = World("inproc", 3)
    yield world
    world.close()


def joins(world: World, other: seams.AgentCore) -> list[seams.AgentCore]:
    return [other, world.join(2, start_when=1)]


def leaves(world: World, other: seams.AgentCore) -> list[seams.AgentCore]:
    other.shutdown(graceful=False)
    return []


def is_lost(world: World, other: seams.AgentCore) -> list[seams.AgentCore]:
    world.kill(other)
    return []


# Cause the event, and return the workers that the job goes on with.
EVENTS = {"on_join": joins, "on_leave": leaves, "on_loss": is_lost}


@pytest.mark.parametrize("graceful", [True, False])
@pytest.mark.parametrize("event", EVENTS)
def test_in_a_callback_of_the_membership_it_shuts_down(
    world: World, event: str, graceful: bool
) -> None:
    """It waits for the living workers, though it runs in the pool that it ends."""
    first, other = (world.join(r, start_when=1) for r in range(2))
    ended: rpc.Future[None] = rpc.Future()

    def shut_down(*told: object) -> None:
        rpc.shutdown(graceful=graceful)
        ended.set_result(None)

    with seams.use_agent(first):
        getattr(rpc, event)(shut_down)
    for each in [world.submit(left.shutdown) for left in EVENTS[event](world, other)]:
        each.result(20)
    assert ended.wait(20) is None
    assert first.life.ended


def test_a_call_that_another_agent_serves_is_no_reason(make_job: MakeJob) -> None:
    job, other = make_job(2), make_job(1).agents[0]
    remote_code.gates("kept").payload = other.shutdown  # type: ignore[attr-defined]
    with seams.use_agent(job.agents[0]):
        assert rpc.rpc_sync("w1", remote_code.runs_what_was_kept) is None
    assert other.life.ended


def test_a_call_that_was_given_up_holds_nobody_up(
    make_job: MakeJob,
    expire: Callable[[rpc.Future[Any]], None],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread cannot be cancelled, and the function may never return."""
    monkeypatch.setattr(life, "CLOSE_SECONDS", 1.0)  # of which it waits for a quarter
    job = make_job(2)
    first, second = job.agents
    given_up = seams.call(first, "w1", remote_code.hold, ("given up",))
    assert remote_code.entered("given up")
    expire(given_up)
    with pytest.raises(CallTimeoutError):
        given_up.wait(20)
    with ThreadPoolExecutor(2) as pool:
        for ending in [pool.submit(agent.shutdown) for agent in (first, second)]:
            ending.result(20)
    assert [each.getMessage() for each in caplog.records if "still run" in each.message] == [
        "agent 'w1' ends while calls still run; their callers were lost or no longer wait for them"
    ]
    remote_code.release("given up")


def user_loops(name: str) -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == f"{name}-user-loop"]


def test_a_coroutine_that_ignores_its_end_is_not_waited_for(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until its loop gave it up, which is longer than the exit of a program may take."""
    monkeypatch.setattr(loop, "STOP_SECONDS", 600.0)
    agent = make_job(1).agents[0]
    name = f"{agent.info.incarnation}-ignores"
    seams.call(agent, "w0", remote_code.ignores_that_it_is_cancelled, (name,))
    assert remote_code.entered(name)
    with ThreadPoolExecutor(1) as pool:
        try:
            pool.submit(agent.leave_within, 1.0).result(30)
            assert agent.life.ended
            assert user_loops("w0")
        finally:
            remote_code.release(name)
    leaks.wait_until_gone("loops", lambda: user_loops("w0"))


def test_a_thread_of_asyncio_holds_up_no_shutdown(make_job: MakeJob) -> None:
    """`asyncio.to_thread`: its pool was waited for, as long as the function blocked."""
    agent = make_job(1).agents[0]
    name = f"{agent.info.incarnation}-thread"
    held = seams.call(agent, "w0", remote_code.holds_a_thread_of_asyncio, (name,))
    assert remote_code.entered(name)
    agent.shutdown(graceful=False)
    assert not user_loops("w0")
    with pytest.raises(NotInitializedError):
        held.wait(20)
    remote_code.release(name)


def test_what_asyncio_runs_in_threads_runs_in_the_pool(make_job: MakeJob) -> None:
    agent = make_job(1).agents[0]
    assert seams.call(agent, "w0", remote_code.threads_of_asyncio).wait(20) == (
        True,
        "ContextVar",
        "told",
    )


# -- evicted, or with something that no call needs any more ----------------------------------------


class Numbers:
    def forever(self) -> Iterator[int]:
        yield from stream_code.forever("of an RRef")


def reads_one(items: rpc.Stream[int]) -> rpc.Stream[int]:
    assert next(items) == 0
    return items


def held(func: Callable[[str], object]) -> rpc.Future[Any]:
    future = rpc.rpc_async("w0", func, ("held",), timeout=math.inf)
    assert remote_code.entered("held")
    return future


def being_made() -> rpc.RRef[str]:
    rref = rpc.remote("w0", remote_code.hold, ("made",), timeout=math.inf)
    assert remote_code.entered("made")
    return rref


def fetched() -> object:
    rref = being_made()
    return rref, rref.rpc_async().upper()


# What a worker does with itself, of which nothing ends by itself. Returns what is to be kept.
WITH_ITSELF: dict[str, Callable[[], object]] = {
    "a stream": lambda: reads_one(rpc.stream("w0", stream_code.forever, ("a",))),
    "a stream of a coroutine": lambda: reads_one(rpc.stream("w0", stream_code.aforever, ("b",))),
    "a stream that nobody has read": lambda: rpc.stream("w0", stream_code.forever, ("c",)),
    "a stream of an RRef": lambda: reads_one(rpc.RRef(Numbers()).rpc_stream().forever()),
    "a call": lambda: held(remote_code.hold),
    "a call of a coroutine": lambda: held(remote_code.hold_async),
    "a creation": being_made,
    "a method of a value that is being made": fetched,
}


@pytest.mark.parametrize("what", WITH_ITSELF)
def test_an_evicted_worker_waits_for_nothing_that_it_does_with_itself(
    make_job: MakeJob, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own waits raise EvictedError: nobody is left who could end what it served to itself."""
    monkeypatch.setattr(life, "CLOSE_SECONDS", 1.0)  # of which a thread gets a quarter
    agent = make_job(1).agents[0]
    with seams.use_agent(agent):
        kept = WITH_ITSELF[what]()
    assert agent.evict(EvictedError("the job goes on without 'w0'", worker="w0", reason="fenced"))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(agent.shutdown).result(30)
    assert agent.life.ended
    del kept


def leaves_a_stream() -> None:
    remote_code.gates("left").payload = reads_one(  # type: ignore[attr-defined]
        rpc.stream("w0", stream_code.forever, ("left",), timeout=math.inf)
    )


def leaves_a_call_that_is_sent_again() -> None:
    rpc.rpc_async("w1", cancel_code.who_again, timeout=math.inf, retry=1)


@pytest.mark.parametrize("leaves", [leaves_a_stream, leaves_a_call_that_is_sent_again])
def test_what_a_call_that_was_answered_has_left_behind_is_not_waited_for(
    make_job: MakeJob, leaves: Callable[[], None]
) -> None:
    """Without an end of its own, it would hold up the shutdown for good."""
    agent, other = make_job(2).agents
    with seams.use_agent(agent):
        other.shutdown(graceful=False)
        leaks.wait_until_gone("workers", lambda: [each.name for each in agent.members.living()[1:]])
        rpc.rpc_sync("w0", leaves)
        assert agent.statistics().pending_calls == 1
        with ThreadPoolExecutor(1) as pool:
            pool.submit(agent.shutdown).result(30)
    assert agent.life.ended


# -- in programs ---------------------------------------------------------------------------------


AT_EXIT = """
import atexit, os
from telegrad import rpc

def who():
    return rpc.get_worker_info().name

if __name__ == "__main__":
    rpc.init_rpc()
    rpc.on_leave(lambda worker: print("left", worker.name, flush=True))
    atexit.register(rpc.shutdown)
    if os.environ["RANK"] == "1":
        # Rank 0 is at its exit by now, or soon: it serves there.
        for _ in range(20):
            assert rpc.rpc_sync("worker0", who) == "worker0"
        print("served", flush=True)
"""


def test_from_atexit_it_serves_until_all_are_there(programs: Programs) -> None:
    ranks = programs.ranks(programs.script(AT_EXIT), 2)
    outputs = [rank.wait() for rank in ranks]
    assert outputs == ["", "served\n"]


# -- while init_rpc still waits --------------------------------------------------------------------


class Waiting(logging.Handler):
    """Hears that a join waits, and how."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self._words = words
        self.heard = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self._words in record.getMessage():
            self.heard.set()


@pytest.fixture
def waits(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[Waiting]:
    logger, waiting = logging.getLogger("telegrad.rendezvous.join"), Waiting(request.param[1])
    caplog.set_level(logging.INFO, logger.name)
    logger.addHandler(waiting)
    yield waiting
    logger.removeHandler(waiting)


HOSTS, SEEKS = (0, "1/2 joined"), (1, "waiting for the coordinator")


@pytest.mark.parametrize("graceful", [True, False])
@pytest.mark.parametrize(
    ("rank", "waits"), [(0, HOSTS), (1, SEEKS)], indirect=["waits"], ids=["hosts", "seeks"]
)
def test_while_init_rpc_waits_in_another_thread(
    waits: Waiting, rank: int, graceful: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*next(iter(TOKEN.items())))
    address = f"tcp://127.0.0.1:{unused_port()}"
    with ThreadPoolExecutor(1) as pool:
        joins = pool.submit(rpc.init_rpc, rank=rank, world_size=2, init_method=address)
        assert waits.heard.wait(20)
        rpc.shutdown(graceful=graceful)
        with pytest.raises(JoinCancelledError, match=r"shutdown\(\) was called while this waited"):
            joins.result(20)
    assert not rpc.is_initialized()
    with rpc.init_rpc(rank=0, world_size=1, init_method=address):  # nothing was left behind
        assert rpc.is_initialized()


@pytest.mark.parametrize("waits", [HOSTS], indirect=True, ids=["hosts"])
@pytest.mark.parametrize(
    ("handler", "error"),
    [
        (signal.default_int_handler, KeyboardInterrupt),
        (lambda *_: rpc.shutdown(), JoinCancelledError),
    ],
    ids=["interrupt", "shutdown"],
)
def test_in_a_signal_handler_while_init_rpc_waits(
    waits: Waiting,
    handler: Callable[..., None],
    error: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread that waits ends the wait; the port of the coordinator is free again, too."""
    monkeypatch.setenv(*next(iter(TOKEN.items())))
    address = f"tcp://127.0.0.1:{unused_port()}"
    main = threading.main_thread().ident or 0

    def interrupt() -> None:
        assert waits.heard.wait(20)
        signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with ThreadPoolExecutor(1) as pool:
            interrupting = pool.submit(interrupt)
            with pytest.raises(error):
                rpc.init_rpc(rank=0, world_size=2, init_method=address)
            interrupting.result(20)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not rpc.is_initialized()
    with rpc.init_rpc(rank=0, world_size=1, init_method=address):
        assert rpc.is_initialized()


def test_just_when_init_rpc_has_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Either the shutdown finds an agent, or the join finds that it was called off."""
    monkeypatch.setenv(*next(iter(TOKEN.items())))
    set_agent = set_process_agent

    def shut_down_first(agent: seams.AgentCore) -> None:
        thread = threading.Thread(target=call_off_joins, args=(0.0,))
        thread.start()
        thread.join()
        set_agent(agent)

    monkeypatch.setattr(_distributed, "set_process_agent", shut_down_first)
    with pytest.raises(JoinCancelledError):
        rpc.init_rpc()
    monkeypatch.undo()
    assert not rpc.is_initialized()


def test_a_join_is_called_off_or_has_settled() -> None:
    woken: list[int] = []
    first, second = CallOff(), CallOff()
    first.wakes(lambda: woken.append(1))
    first.check()
    assert first()
    assert woken == [1]
    for verb in (first.check, first.settle):
        with pytest.raises(JoinCancelledError):
            verb()
    first.wakes(lambda: woken.append(2))
    assert woken == [1, 2]
    second.settle()
    assert not second()
    second.check()


HELD_AT_EXIT = """
import sys, threading
from telegrad import rpc
from telegrad import _distributed
from telegrad.transport import loop

entered = threading.Event()

async def holds_the_loop():
    hold()

def hold():
    entered.set()
    threading.Event().wait(600)

if __name__ == "__main__":
    loop.STOP_SECONDS = 600.0
    _distributed.EXIT_SECONDS = 0.5
    rpc.init_rpc("me")
    held = rpc.rpc_async("me", globals()[sys.argv[1]])
    entered.wait()
    print("end", flush=True)
"""


@pytest.mark.parametrize("held", ["holds_the_loop", "hold"])
def test_nothing_that_is_served_holds_up_the_exit(programs: Programs, held: str) -> None:
    output = programs.run(["python", programs.script(HELD_AT_EXIT), held], env=TOKEN, limit=30.0)
    assert output.splitlines()[0] == "end"


INTERRUPTED = """
import os, sys
from telegrad import rpc
from telegrad.rpc.seams import current_agent

def who():
    return rpc.get_worker_info().name

if __name__ == "__main__":
    rpc.init_rpc()
    if os.environ["RANK"] == "1":
        assert rpc.rpc_sync("worker0", who) == "worker0"
        current_agent().life.on_leaving(lambda: print("waiting\\n", end="", flush=True))
        try:
            rpc.shutdown()
        except KeyboardInterrupt:
            print("interrupted, initialized:", rpc.is_initialized(), flush=True)
        rpc.shutdown()
        rpc.init_rpc("alone", rank=0, world_size=1, init_method=sys.argv[1])
        print(rpc.rpc_sync("alone", who))
    else:
        left = rpc.Future()
        rpc.on_leave(lambda worker: left.set_result(worker.name))
        rpc.on_loss(lambda worker, error: left.set_exception(error))
        print("left:", left.wait())
    rpc.shutdown()
"""


def test_an_interrupt_ends_it_and_the_others_hear(programs: Programs) -> None:
    address = f"tcp://127.0.0.1:{unused_port()}"
    ranks = programs.ranks(programs.script(INTERRUPTED), 2, arguments=[address])
    ranks[1].wait_for("waiting")
    ranks[1].process.send_signal(signal.SIGINT)
    assert ranks[1].wait().splitlines() == [
        "waiting",
        "interrupted, initialized: False",
        "alone",
    ]
    assert ranks[0].wait() == "left: worker1\n"


INTERRUPTED_CALL = """
import threading
from telegrad import rpc

def hold():
    print("held", flush=True)
    threading.Event().wait(60)

if __name__ == "__main__":
    rpc.init_rpc()
    rpc.rpc_sync("worker0", hold)
"""


def test_a_program_that_is_interrupted_in_a_call_ends(programs: Programs) -> None:
    program = programs.start(["python", programs.script(INTERRUPTED_CALL)], env=TOKEN, limit=30.0)
    program.wait_for("held")
    program.process.send_signal(signal.SIGINT)
    output = program.wait(code=-signal.SIGINT)
    assert "KeyboardInterrupt" in output


STOPPED_PEERS = """
import os, signal, sys, threading
import numpy as np
from telegrad import rpc
from telegrad.errors import WorkerLostError

def takes(x):
    return 1

def writes(*words):
    print(*words, flush=True)

if __name__ == "__main__":
    agent = rpc.init_rpc(options=rpc.RpcOptions(lost_after=60.0))
    others = [each.name for each in rpc.get_worker_infos() if each.name != agent.name]
    for other in others:
        assert rpc.rpc_sync(other, takes, (np.ones(2**17),)) == 1
    if agent.rank == 1:
        futures = []
        def flood():
            futures.extend(rpc.rpc_async(other, takes, (np.ones(2**22),)) for other in others)
            writes("sent")
            END
        signal.signal(signal.SIGUSR1, lambda *_: flood())
    else:
        gone = threading.Event()
        rpc.on_leave(lambda worker: gone.set())
        rpc.on_loss(lambda worker, error: gone.set())
    writes("up")
    if agent.rank == 1:
        signal.pause()
    else:
        gone.wait()
        try:
            rpc.rpc_sync("worker1", takes, (0,))
        except WorkerLostError as error:
            writes(error)
        os._exit(0)
"""

ENDS = {"exits": "sys.exit(0)", "is interrupted in a wait": "rpc.wait_all(futures)"}


@pytest.mark.long
@pytest.mark.parametrize("end", ENDS)
def test_a_program_that_ends_while_peers_take_nothing_is_silent_and_they_hear_why(
    programs: Programs, end: str
) -> None:
    """The first peer that was late made the end fail, and all others took it for a death."""
    ranks = programs.ranks(programs.script(STOPPED_PEERS.replace("END", ENDS[end])), 3)
    for each in ranks:
        each.wait_for("up")
    peers = [ranks[0], ranks[2]]
    for each in peers:
        each.process.send_signal(signal.SIGSTOP)
    try:
        ranks[1].process.send_signal(signal.SIGUSR1)
        ranks[1].wait_for("sent")
        if end != "exits":
            ranks[1].process.send_signal(signal.SIGINT)
        output = ranks[1].wait(code=None)
    finally:
        for each in peers:
            each.process.send_signal(signal.SIGCONT)
    if end == "exits":
        assert (ranks[1].process.returncode, output) == (0, "up\nsent\n")
    else:
        assert output.rstrip().endswith("KeyboardInterrupt")
        assert "RuntimeError" not in output
    for each in peers:
        assert "left without a graceful shutdown" in each.wait()


# What the parent waits for is pending in the child for good: its threads are not there.
FORKED = """
import asyncio, operator, os, signal, threading
from telegrad import dist_autograd, rpc
from telegrad.errors import AgentForkedError

gate = threading.Event()


def held(value):
    gate.wait(60)
    return value


def held_items(n):
    for i in range(n):
        gate.wait(60) if i else None
        yield i


async def awaits(future):
    return await future


async def first_completed(futures):
    return await anext(rpc.as_completed(futures))


async def next_item(stream):
    return await anext(stream)


agent, other = rpc.init_rpc(), rpc.Agent("other")
done = rpc.rpc_async(0, operator.neg, (3,))
done.wait()
pending = rpc.rpc_async(0, held, (3,))
then = pending.then(lambda done: done.value())
mine = rpc.remote(0, held, (4,))
stream = rpc.stream(0, held_items, (2,))
assert next(stream) == 0
plain = rpc.Future()
waits = {
    "a call": pending.wait,
    "a call, with a limit": lambda: pending.wait(30),
    "what follows it": then.wait,
    "what is made to follow it": lambda: pending.then(lambda done: 1).wait(),
    "await": lambda: asyncio.run(awaits(pending)),
    "wait_all": lambda: rpc.wait_all([done, pending]),
    "collect_all": lambda: rpc.collect_all([plain, pending]).wait(),
    "gather": lambda: rpc.gather([done, pending]).wait(),
    "as_completed": lambda: next(rpc.as_completed([pending])),
    "async as_completed": lambda: asyncio.run(first_completed([pending])),
    "to_here": mine.to_here,
    "local_value": mine.local_value,
    "a stream": lambda: next(stream),
    "an async stream": lambda: asyncio.run(next_item(stream)),
}
rref = rpc.remote(0, operator.neg, (3,))
assert rref.to_here() == -3
proxy = rref.rpc_sync()
verbs = {
    "rpc_sync": lambda: rpc.rpc_sync(0, operator.neg, (3,)),
    "rpc_async": lambda: rpc.rpc_async(0, operator.neg, (3,)),
    "remote": lambda: rpc.remote(0, operator.neg, (3,)),
    "RRef": lambda: rpc.RRef(3),
    "on_join": lambda: rpc.on_join(print),
    "get_worker_infos": rpc.get_worker_infos,
    "statistics": rpc.statistics,
    "init_rpc": rpc.init_rpc,
    "context": lambda: dist_autograd.context().__enter__(),
    "a proxy": lambda: proxy.bit_length(),
    "the agent": lambda: agent.rpc_sync(0, operator.neg, (3,)),
    "another agent": lambda: other.remote(0, operator.neg, (3,)),
}
child = os.fork()
if child == 0:
    signal.alarm(20)
    print("initialized:", rpc.is_initialized(), flush=True)
    for name, wait in (waits | verbs).items():
        try:
            wait()
            print(name, "went through", flush=True)
        except AgentForkedError:
            print(name, "told", flush=True)
    assert done.wait() == -3
    threading.Timer(0.01, plain.set_result, (5,)).start()
    assert plain.wait() == 5  # it is of no agent: the child may complete it
    for shutdown in (rpc.shutdown, agent.shutdown, other.shutdown):  # nothing to end here
        shutdown()
    print("end", flush=True)
    os._exit(0)
_, status = os.waitpid(child, 0)
gate.set()
print("child", status, pending.wait(), mine.to_here(), next(stream), flush=True)
print("verbs", rpc.rpc_sync(0, operator.neg, (3,)), flush=True)
other.shutdown()
rpc.shutdown()
"""


def test_a_forked_child_is_told_by_every_verb(programs: Programs) -> None:
    lines = programs.run(["python", programs.script(FORKED)], env=TOKEN).splitlines()
    assert [line for line in lines if "went" in line] == []
    assert len([line for line in lines if "told" in line]) == 26
    assert "initialized: False" in lines
    assert lines[-3:] == ["end", "child 0 3 4 1", "verbs -3"]
