"""Blocking verbs that an exception of a signal handler leaves: whatever they have begun ends too."""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from telegrad import rpc
from telegrad.rpc import seams
from telegrad.testing import leaks
from tests.conftest import Programs
from tests.interrupting import interrupted
from tests.rpc import remote_code
from tests.rpc.call import cancel_code
from tests.rpc.conftest import Job, MakeJob
from tests.rpc.promises import left_code
from tests.rpc.rest import assert_at_rest
from tests.rpc.stream import stream_code

gates, release, entered = remote_code.gates, remote_code.release, remote_code.entered


@pytest.fixture
def job(make_job: MakeJob) -> Iterator[Job]:
    """Three workers whose calls do not expire while a test waits; this thread is of w0."""
    job = make_job(3, timeout=120.0)
    with seams.use_agent(job.agents[0]):
        yield job


def cancelled(name: str) -> bool:
    return gates(f"{name}-cancelled").wait(20)


# -- a verb that nobody can wait for again cancels its call


VERBS: dict[str, Callable[[str], object]] = {
    "rpc_sync": lambda name: rpc.rpc_sync("w1", cancel_code.run_until_cancelled, (name,)),
    "of a coroutine": lambda name: rpc.rpc_sync("w1", cancel_code.awaits_forever, (name,)),
    "with retries": lambda name: rpc.rpc_sync("w1", cancel_code.runs_again, (name,), retry=2),
    "to itself": lambda name: rpc.rpc_sync("w0", cancel_code.run_until_cancelled, (name,)),
    "a method": lambda name: rpc.remote("w1", cancel_code.Model).rpc_sync().run(name),
    "an attribute": lambda name: rpc.remote("w1", cancel_code.Slow, (name,)).rpc_sync().value,
}


@pytest.mark.parametrize("number", [signal.SIGALRM, signal.SIGINT])
@pytest.mark.parametrize("verb", VERBS)
def test_an_interrupted_verb_cancels_its_call(job: Job, verb: str, number: signal.Signals) -> None:
    name = f"{job.agents[0].info.incarnation}-{verb}"
    with interrupted(partial(entered, name), number):
        VERBS[verb](name)
    assert cancelled(name)
    assert_at_rest(job.agents)


def test_an_interrupted_lookup_is_over_at_both_ends(job: Job) -> None:
    with interrupted(lambda: leaks.wait_until_gone("silence", partial(not_serving, job.agents[1]))):
        rpc.lookup("w1", "never")
    assert_at_rest(job.agents)


def not_serving(agent: seams.AgentCore) -> list[str]:
    return [] if agent.serving.calls() else ["the call has not come"]


# -- a fetch is not its creation


@pytest.mark.parametrize(
    ("owner", "verb"), [("w0", "to_here"), ("w1", "to_here"), ("w0", "local_value")]
)
def test_an_interrupted_fetch_leaves_the_creation_alone(job: Job, owner: str, verb: str) -> None:
    name = f"{job.agents[0].info.incarnation}-{verb}"
    rref = rpc.remote(owner, remote_code.hold, (name,))
    with interrupted(partial(entered, name)):
        getattr(rref, verb)()
    assert rpc.statistics().pending_calls == 1  # the creation
    release(name)
    assert getattr(rref, verb)() == name
    assert_at_rest(job.agents)


# -- what somebody can wait for again stays


def waits_for_all(futures: list[rpc.Future[str]]) -> list[str]:
    return rpc.wait_all(futures)


def waits_for_each(futures: list[rpc.Future[str]]) -> list[str]:
    return sorted(future.value() for future in rpc.as_completed(futures))


def waits_for_a_list(futures: list[rpc.Future[str]]) -> list[str]:
    return [future.value() for future in rpc.collect_all(futures).wait()]


def waits_one_by_one(futures: list[rpc.Future[str]]) -> list[str]:
    return [future.wait() for future in futures]


@pytest.mark.parametrize(
    "wait", [waits_for_all, waits_for_each, waits_for_a_list, waits_one_by_one]
)
def test_an_interrupted_wait_leaves_its_futures_pending(
    job: Job, wait: Callable[[list[rpc.Future[str]]], list[str]]
) -> None:
    names = [f"{job.agents[0].info.incarnation}-{i}" for i in range(2)]
    futures = [rpc.rpc_async("w1", remote_code.hold, (name,)) for name in names]
    with interrupted(lambda: [entered(name) for name in names]):
        wait(futures)
    assert not any(future.done() for future in futures)
    for name in names:
        release(name)
    assert wait(futures) == names
    assert_at_rest(job.agents)


def test_a_future_is_cancelled_after_an_interrupted_wait(job: Job) -> None:
    name = f"{job.agents[0].info.incarnation}-later"
    future = rpc.rpc_async("w1", cancel_code.run_until_cancelled, (name,))
    with interrupted(partial(entered, name)):
        future.wait()
    assert future.cancel()
    assert cancelled(name)
    assert_at_rest(job.agents)


def test_an_interrupted_iteration_goes_on(job: Job) -> None:
    name = f"{job.agents[0].info.incarnation}-stream"
    items: rpc.Stream[Any] = rpc.stream("w1", stream_code.holds, (name,))
    assert next(items) == 0
    with interrupted(partial(entered, name)):
        next(items)
    release(name)
    assert list(items) == [1]
    assert_at_rest(job.agents)


# -- an exception at any moment leaves the connection, and all others' calls, as they are


def leave_at_any_moment(programs: Programs, times: int, direct: str, limit: float) -> None:
    seed = random.randrange(10**6)
    sys.stdout.write(f"seed: {seed}\n")
    script = Path(left_code.__file__)
    for program in programs.ranks(
        script, 2, arguments=(str(seed), str(times), direct), limit=limit
    ):
        program.wait()


@pytest.mark.parametrize("direct", ["True", "tcp", "False"])
@pytest.mark.few(1)
def test_verbs_may_be_left_at_any_moment(programs: Programs, direct: str) -> None:
    leave_at_any_moment(programs, 100, direct, limit=45.0)


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("direct", ["True", "tcp", "False"])
def test_verbs_may_be_left_at_many_moments(programs: Programs, direct: str) -> None:
    leave_at_any_moment(programs, 3000, direct, limit=360.0)
