"""`rpc.Agent` as an object: several in one process, in one job or in different ones."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from telegrad import collectives, dist_autograd, nn, rpc
from telegrad.autograd import no_grad, tensor
from telegrad.errors import (
    AlreadyInitializedError,
    BlockingCallError,
    ContextError,
    NotInitializedError,
    UnknownWorkerError,
)
from telegrad.parallel import RemoteModule
from telegrad.testing import leaks
from tests.conftest import ROOT, TOKEN, Programs
from tests.rpc import remote_code

pytestmark = pytest.mark.usefixtures("alone")

OPTIONS = rpc.RpcOptions(timeout=20.0, init_timeout=20.0, token=TOKEN)


MakeAgents = Callable[..., list[rpc.Agent]]


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[MakeAgents]:
    """Makes the agents of a job: `agents("a", "b")`; all are shut down together at the end."""
    made: list[rpc.Agent] = []

    def make(*names: str) -> list[rpc.Agent]:
        method = f"file://{tmp_path / '-'.join(names)}"

        def join(rank: int) -> rpc.Agent:
            return rpc.Agent(
                names[rank], rank=rank, world_size=len(names), init_method=method, options=OPTIONS
            )

        job = together([partial(join, rank) for rank in range(len(names))])
        made.extend(job)
        return job

    yield make
    together([partial(each.shutdown, timeout=20.0) for each in made])


def together(functions: Sequence[Callable[[], Any]]) -> list[Any]:
    """Runs functions at once, each in a thread and a Context of its own."""
    with ThreadPoolExecutor(max(len(functions), 1)) as pool:
        futures = [pool.submit(contextvars.Context().run, each) for each in functions]
        return [each.result() for each in futures]


def call_back(agent_of_caller: str, value: float) -> tuple[str, float]:
    """Runs on one agent and calls the other, both of this process."""
    return rpc.get_worker_info().name, rpc.rpc_sync(agent_of_caller, remote_code.echo, (value + 1,))


def read(rref: rpc.RRef[list[int]]) -> list[int]:
    """Runs on the owner."""
    return rref.local_value()


# -- one agent --------------------------------------------------------------------------------


def test_an_agent_becomes_nobodys_default() -> None:
    with rpc.Agent("alone") as agent:
        assert not rpc.is_initialized()
        with pytest.raises(NotInitializedError, match=r"with agent\.as_current\(\)"):
            rpc.get_worker_info()
        assert agent.rpc_sync("alone", remote_code.add, (1, 2)) == 3
        assert agent.rpc_async(0, remote_code.add, (1, 2)).wait() == 3
        assert agent.rpc_sync(0, remote_code.who) == "alone"  # what is called has an ambient agent
        assert agent.remote(0, remote_code.add, (1, 2)).to_here() == 3
        assert agent.get_worker_info() == agent.get_worker_info("alone")
        assert agent.get_worker_infos() == [agent.get_worker_info()]
        assert not rpc.is_initialized()


def test_an_agent_that_has_ended_says_so_in_every_verb() -> None:
    agent = rpc.Agent("over")
    agent.shutdown()
    agent.shutdown()
    verbs: list[Callable[[], object]] = [
        lambda: agent.rpc_sync("over", remote_code.who),
        lambda: agent.rpc_async("over", remote_code.who),
        lambda: agent.remote("over", remote_code.who),
        agent.get_worker_info,
        agent.get_worker_infos,
    ]
    for verb in verbs:
        with pytest.raises(NotInitializedError, match="'over' was shut down"):
            verb()
    with agent.as_current(), pytest.raises(NotInitializedError, match="'over' was shut down"):
        rpc.get_worker_info()


def test_the_warning_of_an_insecure_agent_names_the_users_line() -> None:
    with pytest.warns(UserWarning, match="insecure=True") as caught:
        rpc.Agent(options=rpc.RpcOptions(insecure=True)).shutdown()
    assert caught[0].filename == __file__


async def make_one_here() -> None:
    rpc.Agent("inner")


def test_an_agent_is_not_made_on_a_loop_of_telegrads() -> None:
    with rpc.Agent("outer") as agent, pytest.raises(BlockingCallError):
        agent.rpc_sync("outer", make_one_here)


# -- several ----------------------------------------------------------------------------------


def test_two_workers_of_one_job_in_one_process(agents: MakeAgents) -> None:
    a, b = agents("a", "b")
    assert (a.rank, b.rank, a.world_size) == (0, 1, 2)
    assert a.rpc_sync("b", call_back, ("a", 1.0)) == ("b", 2.0)
    assert b.rpc_sync("a", call_back, ("b", 1.0)) == ("a", 2.0)
    with a.as_current():
        rref: rpc.RRef[list[int]] = rpc.remote("b", list, ((1, 2),))
        assert rref.owner() == b.get_worker_info()
        assert rpc.rpc_sync("b", read, (rref,)) == [1, 2]
    assert rref.to_here() == [1, 2]  # an RRef knows its agent, whatever is ambient
    with b.as_current():
        assert rref.to_here() == [1, 2]
    rref.release()


def test_agents_of_different_jobs_know_nothing_of_each_other(agents: MakeAgents) -> None:
    (a,), (other,) = agents("a"), agents("other")
    assert [each.name for each in a.get_worker_infos()] == ["a"]
    with pytest.raises(UnknownWorkerError, match="other"):
        a.rpc_sync("other", remote_code.who)
    with a.as_current():
        rref: rpc.RRef[list[int]] = rpc.RRef([1])
        with other.as_current(), pytest.raises(RuntimeError, match="belongs to the agent 'a'"):
            rpc.rpc_sync("other", read, (rref,))
    assert other.statistics().pending_calls == 0
    assert rref.local_value() == [1]
    assert a.statistics().owned_rrefs == 1
    assert other.statistics().owned_rrefs == 0


def test_beside_the_agent_of_the_process(agents: MakeAgents) -> None:
    rpc.init_rpc("default")
    a, b = agents("a", "b")
    assert rpc.get_worker_info().name == "default"
    with a.as_current() as inside:
        assert inside is a
        assert rpc.get_worker_info().name == "a"
        with b.as_current():
            assert rpc.get_worker_info().name == "b"
            assert a.rpc_sync("a", remote_code.who) == "a"
            assert rpc.get_worker_info().name == "b"
        assert rpc.get_worker_info().name == "a"
        seen: list[str] = []
        thread = threading.Thread(target=lambda: seen.append(rpc.get_worker_info().name))
        thread.start()
        thread.join()
        assert seen == ["default"]  # a thread of its own sees the agent of the process
        with pytest.raises(AlreadyInitializedError, match="'default' already runs"):
            rpc.init_rpc("second")
    assert rpc.get_worker_info().name == "default"


def test_the_verb_shutdown_ends_the_ambient_agent(agents: MakeAgents) -> None:
    rpc.init_rpc("default")
    (a,) = agents("a")
    with a.as_current():
        rpc.shutdown()
        assert a.ended
        assert not rpc.is_initialized()
    assert rpc.get_worker_info().name == "default"


def test_what_a_verb_raises_gives_back_what_was_ambient(agents: MakeAgents) -> None:
    a, b = agents("a", "b")
    with b.as_current():
        with pytest.raises(UnknownWorkerError):
            a.rpc_sync("nobody", remote_code.who)
        with pytest.raises(UnknownWorkerError):
            a.remote(7, list)
        with pytest.raises(TypeError):
            a.rpc_async("a", 3)  # type: ignore[call-overload]
        assert rpc.get_worker_info().name == "b"


async def who_in_turns(agent: rpc.Agent, turns: asyncio.Queue[str]) -> list[str]:
    """Asks who is ambient between waits, during which the other task runs."""
    found = []
    with agent.as_current():
        for _ in range(3):
            await turns.put(agent.name)
            found.append(rpc.get_worker_info().name)
            found.append(await rpc.rpc_async(0, remote_code.who))
    return found


def test_tasks_of_one_loop_have_an_agent_each(agents: MakeAgents) -> None:
    (a,), (b,) = agents("a"), agents("b")

    async def main() -> tuple[list[str], list[str]]:
        turns: asyncio.Queue[str] = asyncio.Queue()
        of_a, of_b = await asyncio.gather(who_in_turns(a, turns), who_in_turns(b, turns))
        return of_a, of_b

    assert asyncio.run(main()) == (["a"] * 6, ["b"] * 6)


@pytest.mark.long
def test_many_agents_come_and_go_and_leave_nothing() -> None:
    def come_and_go(round_: int) -> None:
        names = [f"job{i}-{round_}" for i in range(4)]
        with ExitStack() as stack:
            several = [stack.enter_context(rpc.Agent(name, options=OPTIONS)) for name in names]
            assert together([partial(a.rpc_sync, 0, remote_code.who) for a in several]) == names

    come_and_go(0)
    before = len(leaks.open_descriptors())
    for round_ in range(1, 6):
        come_and_go(round_)
    # gRPC opens another four of its own, at some time; a leak would be one of 20 agents' at least.
    grown = len(leaks.open_descriptors()) - before
    assert grown < 20, leaks.open_descriptors()


# -- what stands on agents --------------------------------------------------------------------


def test_a_remote_module_remembers_its_agent(agents: MakeAgents) -> None:
    a, _ = agents("a", "b")
    (other,) = agents("other")
    with a.as_current():
        module = RemoteModule("b", nn.Linear, (3, 2), {"dtype": np.float64})
    x = np.ones((1, 3))
    with no_grad():
        expected = module(tensor(x)).data
        with other.as_current():
            np.testing.assert_array_equal(module(tensor(x)).data, expected)
            assert module.eval() is module
            assert [each.owner_name() for each in module.remote_parameters()] == ["b", "b"]
            assert sorted(RemoteModule.from_rref(module.get_module_rref()).state_dict()) == [
                "bias",
                "weight",
            ]


def test_a_context_belongs_to_the_agent_that_it_was_opened_with(agents: MakeAgents) -> None:
    (a,), (b,) = agents("a"), agents("b")
    x = tensor([1.0], requires_grad=True)
    with a.as_current(), dist_autograd.context() as context_id, b.as_current():
        with pytest.warns(UserWarning, match="outside of an autograd context"):
            rpc.rpc_sync("b", remote_code.echo, (x,))
        with pytest.raises(ContextError, match="worker 'b' knows no autograd context"):
            dist_autograd.backward(context_id, [(x * x).sum()])


def test_collectives_of_the_ambient_agent(agents: MakeAgents) -> None:
    jobs = [agents("a0", "a1"), agents("b0", "b1", "b2")]

    def rank_of(agent: rpc.Agent) -> float:
        with agent.as_current():
            group = collectives.init_process_group()
            assert (group.rank, group.size) == (agent.rank, agent.world_size)
            total = np.array([float(agent.rank + 1)])
            collectives.all_reduce(total)
            collectives.destroy_process_group()
            assert not agent.ended  # the groups have not made it
            return float(total[0])

    found = together([partial(rank_of, each) for job in jobs for each in job])
    assert found == [3.0, 3.0, 6.0, 6.0, 6.0]


# -- processes --------------------------------------------------------------------------------

FORGETFUL = """
from telegrad import rpc

def who():
    return rpc.get_worker_info().name

agents = [rpc.Agent(f"w{i}") for i in range(3)]
print([agent.rpc_sync(0, who) for agent in agents], flush=True)
"""


def test_agents_that_are_never_shut_down_leave_at_the_exit(programs: Programs) -> None:
    output = programs.run(["python", programs.script(FORGETFUL)])
    assert output.strip() == "['w0', 'w1', 'w2']"


def test_the_program_of_the_guide_runs(programs: Programs) -> None:
    text = (ROOT / "docs" / "agents.md").read_text()
    code = text.partition("```python\n")[2].partition("```\n")[0]
    assert programs.run(["python", programs.script(code)]).splitlines() == ["3", "alone 7"]


SWITCHES = """
import sys
from telegrad import rpc

sys.setswitchinterval(0.004)
said = [sys.getswitchinterval()]
first = rpc.Agent("first")
second = rpc.Agent("second")
said.append(sys.getswitchinterval())
first.shutdown()
said.append(sys.getswitchinterval())
second.shutdown()
second.shutdown()
said.append(sys.getswitchinterval())
sys.setswitchinterval(0.000125)
with rpc.Agent("third"):
    said.append(sys.getswitchinterval())
print(*said)
"""


def test_the_switch_interval_is_low_while_an_agent_runs(programs: Programs) -> None:
    output = programs.run(["python", programs.script(SWITCHES)])
    assert output.split() == ["0.004", "0.0005", "0.0005", "0.004", "0.000125"]
