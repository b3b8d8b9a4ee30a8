"""What is left of a group when its agent, its process or an operation of it has ended."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

from telegrad import collectives as dist
from telegrad.collectives.link import Link
from telegrad.collectives.messages import Signature
from telegrad.collectives.operation import Call
from telegrad.collectives.seams import Groups, GroupTerms
from telegrad.errors import CollectiveMismatchError, WorkerLostError
from telegrad.rpc.seams import current_agent
from telegrad.testing import Cluster
from telegrad.testing.leaks import wait_until_gone
from tests.collectives import remote_code
from tests.collectives.remote_code import LARGE
from tests.conftest import Programs


def ends_its_agent() -> list[str]:
    """Leaves at once while it waits for rank 1, and then wants to go on."""
    agent = current_agent()
    groups = agent.attachments[Groups]
    said: list[str] = []

    def form() -> None:
        said.append(remote_code.refusal(lambda: groups.form([0, 1], 100.0, GroupTerms())))

    work = dist.all_reduce(np.ones(LARGE), async_op=True)

    def make_and_receive() -> None:
        dist.recv(np.zeros(1), 1, group=groups.make_world(100.0))

    def receive() -> None:
        said.append(remote_code.refusal(make_and_receive))

    waits = threading.Thread(target=form)
    waits.start()
    remote_code.is_forming()
    agent.shutdown(graceful=False)
    late = [threading.Thread(target=each, daemon=True) for each in (form, receive)]
    for thread in late:
        thread.start()
    for thread in (waits, *late):
        thread.join(30.0)
    return [remote_code.refusal(work.wait), *said]


def test_every_wait_ends_with_the_agent() -> None:
    """What came when the agent had just ended, or a group was just made, waited: nothing ticks."""
    with Cluster(2) as cluster:
        cluster.run(remote_code.meet)
        said = cluster.call(0, ends_its_agent)
    assert len(said) == 4
    for words in said:  # what worker 1 says of the worker that left it may come before the end
        assert words.startswith(("NotInitializedError: ", "WorkerLostError: ")), words


class Big:
    """Stands for what a user's function holds when it fails."""


def aborts_with_a_frame() -> bool:
    remote_code.begin()
    group = dist.world_group()
    kept: list[weakref.ref[Big]] = []

    def fails() -> None:
        big = Big()
        kept.append(weakref.ref(big))
        raise ValueError("no more data") from ArithmeticError("of this kind")

    try:
        fails()
    except ValueError as error:
        group.abort(error)
    words = remote_code.refusal(dist.barrier)
    assert words.startswith("ValueError: no more data"), words
    gc.collect()
    return kept[0]() is None


def test_a_group_that_is_over_keeps_nothing_of_who_failed() -> None:
    """It kept the frames of the cause, and so the user's locals, until the agent's end."""
    with Cluster(1) as cluster:
        assert cluster.run(aborts_with_a_frame) == [True]


def fails_twice() -> str:
    """Rank 0 hears of the loss of a rank before its thread runs, which a mismatch has woken."""
    remote_code.begin()
    group = dist.world_group()

    async def run(link: Link) -> None:
        group.fail(CollectiveMismatchError("another call"), since=1)
        group.fail(WorkerLostError("gone", worker="w1", incarnation=1, reason="it left"))
        await link.signalled(0)

    call = Call(signature=Signature(operation="test"), run=run)
    return remote_code.refusal(lambda: group.call(call, 60.0))


def test_an_operation_raises_the_first_failure_that_ended_it() -> None:
    """The loss of a rank hid the mismatch of which that rank had told before it left."""
    with Cluster(1) as cluster:
        (said,) = cluster.run(fails_twice)
    assert said.startswith("CollectiveMismatchError: another call")


def is_interrupted() -> None:
    dist.world_group().abort(KeyboardInterrupt())  # as an operation that it interrupts


def waits_for(what: str) -> None:
    """Returns once this rank knows that the group has failed, or that rank 0 is lost."""
    group, members = dist.world_group(), current_agent().members

    def missing() -> list[str]:
        known = group.failed if what == "failure" else members.lost(group.members[0]) is not None
        return [] if known else [what]

    wait_until_gone("wait", missing)


def leaves_at_once() -> None:
    current_agent().shutdown(graceful=False)


def is_refused() -> str:
    return remote_code.refusal(dist.barrier)


def test_a_rank_that_comes_late_is_told_of_the_one_that_was_interrupted() -> None:
    """It was told of the loss of a rank that had left with that error."""
    with Cluster(3) as cluster:
        cluster.run(remote_code.begin)
        cluster.call(1, is_interrupted)
        said = [cluster.call(0, is_refused)]
        cluster.call(2, waits_for, "failure")
        cluster.call(0, leaves_at_once)
        cluster.call(2, waits_for, "loss")
        said.append(cluster.call(2, is_refused))
    for words in said:
        assert "on rank 1 ('worker1') was interrupted (KeyboardInterrupt)" in words, words


INTERRUPTED_WHILE_FORMING = """
import signal
import threading
from telegrad import collectives as dist
from telegrad.collectives.seams import Groups
from telegrad.rpc.seams import current_agent

def set_timer():
    while not formations.waiting:
        threading.Event().wait(0.01)
    signal.setitimer(signal.ITIMER_REAL, 0.2)

group = dist.init_process_group()
dist.barrier()
agent = current_agent()
formations = agent.attachments[Groups].formations
if group.rank == 1:
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    threading.Thread(target=set_timer).start()
if group.rank == 2:
    for member in group.members[:2]:
        while agent.members.lost(member) is None:
            threading.Event().wait(0.01)
try:
    dist.new_group([0, 1, 2])
except BaseException as error:
    print(type(error).__name__, error)
"""


def test_a_rank_that_comes_late_to_new_group_is_told_of_the_one_that_was_interrupted(
    programs: Programs,
) -> None:
    """It was told of the loss of the rank that had left first, with that error."""
    outputs = [
        each.wait() for each in programs.ranks(programs.script(INTERRUPTED_WHILE_FORMING), 3)
    ]
    assert outputs[1].startswith("KeyboardInterrupt")
    for r in (0, 2):
        assert outputs[r].startswith(
            "RemoteError new_group([0, 1, 2]) on rank 1 ('worker1') was interrupted"
        ), outputs[r]


FORKS = """
import os
import numpy as np
from telegrad import collectives as dist
from telegrad.errors import AgentForkedError

group = dist.init_process_group()
dist.barrier()
child = os.fork()
if child == 0:
    for call in (lambda: dist.barrier(group), lambda: group.size):
        try:
            call()
        except AgentForkedError as error:
            print("told:", error, flush=True)
    work = None
    try:
        work = dist.all_reduce(np.ones(3), group=group, async_op=True)
    except AgentForkedError:
        print("told again", flush=True)
    os._exit(0 if work is None else 1)
assert os.waitpid(child, 0)[1] == 0
dist.barrier(group)
dist.destroy_process_group()
"""


def test_a_forked_child_is_told(programs: Programs) -> None:
    """An operation of a group that it inherits waited for ever: no loop runs in the child."""
    script = programs.script(FORKS)
    for r, program in enumerate(programs.ranks(script, 2)):
        output = program.wait()
        assert f"told: group 'world' on rank {r} ('worker{r}') belongs to process" in output
        assert "told again" in output


SERVES_ON = """
import numpy as np
import threading
from telegrad import collectives as dist, nn, parallel, rpc
from telegrad.rpc.seams import current_agent

WAITS = threading.Event()  # in shutdown()


def waits():
    return WAITS.is_set()


def total(group):
    x = np.ones(1)
    dist.all_reduce(x, group=group)
    return x.item()


def in_own_group():
    return total(TRAINERS)


def in_the_world():
    return total(None)


def in_a_new_group():
    return total(dist.new_group([1, 2]))


def trained():
    model = parallel.DistributedDataParallel(nn.Linear(1, 1), process_group=TRAINERS)
    model(np.full((1, 1), rank, np.float32)).mean().backward()
    return model.module.weight.grad.item()


def from_the_start():
    dist.destroy_process_group()
    dist.init_process_group()
    return total(None)


agent = rpc.init_rpc()
dist.init_process_group()
rank = agent.rank
TRAINERS = dist.new_group([1, 2])
if rank == 0:
    while not all(rpc.rpc_sync(r, waits) for r in (1, 2)):
        WAITS.wait(0.05)
    for task, ranks in (
        (in_own_group, (1, 2)),
        (in_the_world, (0, 1, 2)),
        (in_a_new_group, (1, 2)),
        (trained, (1, 2)),
        (from_the_start, (0, 1, 2)),
    ):
        futures = [rpc.rpc_async(r, task) for r in ranks]
        print(task.__name__, [future.wait() for future in futures], flush=True)
else:
    current_agent().life.on_leaving(WAITS.set)
rpc.shutdown()
"""


@pytest.mark.long
def test_a_worker_that_waits_in_shutdown_is_in_its_groups_for_calls_that_it_serves(
    programs: Programs,
) -> None:
    """As trainers that a driver calls: "group is over" was the answer."""
    driver, *trainers = programs.ranks(programs.script(SERVES_ON), 3)
    assert driver.wait().splitlines() == [
        "in_own_group [2.0, 2.0]",
        "in_the_world [3.0, 3.0, 3.0]",
        "in_a_new_group [2.0, 2.0]",
        "trained [1.5, 1.5]",
        "from_the_start [3.0, 3.0, 3.0]",
    ]
    for program in trainers:
        assert program.wait() == ""


WAITS_IN_VAIN = """
import sys
import numpy as np
from telegrad import collectives as dist, nn, parallel, rpc
from telegrad.errors import CollectiveMismatchError

world = dist.init_process_group()
r, how = world.rank, sys.argv[1]
pair = dist.new_group([0, 1])
try:
    if how == "recv" and r == 0:
        dist.recv(np.zeros(1), src=1)
    elif how == "work" and r == 0:
        dist.all_reduce(np.ones(1), group=pair, async_op=True).wait()
    elif how == "works" and r == 0:  # it tells of the second after the first, in which it waits
        works = [dist.all_reduce(np.ones(1), group=pair, async_op=True) for _ in range(2)]
        works[0].wait()
    elif how == "backward" and r != 1:
        model = parallel.DistributedDataParallel(nn.Linear(1, 1))
        model(np.ones((1, 1), np.float32)).mean().backward()
    elif how == "backward":
        parallel.DistributedDataParallel(nn.Linear(1, 1))
except CollectiveMismatchError as error:
    print(error, flush=True)
rpc.shutdown()
"""


@pytest.mark.parametrize("how", ["recv", "work", "works", "backward"])
@pytest.mark.long
def test_a_rank_that_waits_for_one_in_shutdown_is_told(programs: Programs, how: str) -> None:
    """Nobody is left who could call the worker that waits in shutdown()."""
    script = programs.script(WAITS_IN_VAIN)
    outputs = [each.wait() for each in programs.ranks(script, 3, arguments=[how])]
    for r, output in enumerate(outputs):
        waits = r == 0 or (how == "backward" and r == 2)
        assert ("rank 1 ('worker1') left the group after" in output) == waits, output
        assert waits or not output
    assert how != "backward" or "`with model.join():`" in outputs[0]


OVERTAKEN = """
import threading
import numpy as np
from telegrad import collectives as dist, rpc
from telegrad.collectives import failure, operation
from telegrad.collectives.groups import process_group
from telegrad.collectives.messages import BLOCKED, ENTERED, HERE
from telegrad.errors import CollectiveMismatchError

blocked = threading.Event()
post, tell_call = process_group.ProcessGroup.post, operation.Operation.tell_call


def tell(called):  # an answer in a thread of its own, so that the timer overtakes it
    if called.timer.told_blocked:
        tell_call(called)
    else:
        threading.Thread(target=tell_call, args=(called,), daemon=True).start()


def post_late(group, to, kind, slot, number, *data):
    if kind == ENTERED and number == HERE and not blocked.is_set():
        print("late" if blocked.wait(30.0) else "never blocked", flush=True)
    post(group, to, kind, slot, number, *data)
    if number == BLOCKED and to == 2:
        blocked.set()


rank = dist.init_process_group().rank
failure.TELL_AFTER = 0.2 if rank == 2 else 0.8
if rank == 0:
    process_group.ProcessGroup.post, operation.Operation.tell_call = post_late, tell
try:
    if rank != 1:
        dist.all_reduce(np.ones(3))
except CollectiveMismatchError as error:
    print(error, flush=True)
rpc.shutdown()
"""


@pytest.mark.long
def test_an_answer_to_another_rank_does_not_overtake_the_word_of_a_block(
    programs: Programs,
) -> None:
    """Rank 1 heard of the block of rank 0, then that it goes on, and waited in shutdown()."""
    outputs = [each.wait() for each in programs.ranks(programs.script(OVERTAKEN), 3)]
    assert outputs[0].startswith("late"), outputs
    for r in (0, 2):
        assert "rank 1 ('worker1') left the group after" in outputs[r], outputs
