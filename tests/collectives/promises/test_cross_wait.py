"""Ranks that wait for each other in different operations are told so, long before a deadline."""

from __future__ import annotations

from tests.conftest import Programs

CROSS_WAITS = """
import threading
import numpy as np
from telegrad import collectives as dist
from telegrad.collectives import failure
from telegrad.collectives.groups import process_group
from telegrad.collectives.groups.cross_waits import CrossWaits
from telegrad.errors import CallTimeoutError, CollectiveMismatchError

def noted(made, *given):
    global cross_waits
    cross_waits = made
    begin(made, *given)


failure.TELL_AFTER = 0.2
begin, CrossWaits.__init__ = CrossWaits.__init__, noted
world = dist.init_process_group()
rank = world.rank
ONE = np.ones(3)


def two_groups():
    a, b = dist.new_group([0, 1, 2]), dist.new_group([0, 1, 2])
    dist.all_reduce(ONE.copy(), group=a if rank == 0 else b)


def started_and_awaited():
    a, b = dist.new_group([0, 1, 2]), dist.new_group([0, 1, 2])
    dist.all_reduce(ONE.copy(), group=a if rank == 0 else b, async_op=True).wait()


def one_receives():
    group = dist.new_group([0, 1, 2])
    if rank == 0:
        dist.recv(ONE.copy(), src=1, group=group)
    else:
        dist.all_reduce(ONE.copy(), group=group)


def both_receive():
    group = dist.new_group([0, 1, 2])
    if rank < 2:
        dist.recv(ONE.copy(), src=1 - rank, group=group)
    else:
        dist.barrier(group)


class Late:
    # The thread of an operation that has failed comes to run when the others wait in what is next.
    def __init__(self, steps, group):
        self.steps, self.throw, self.group = steps, steps.throw, group

    def send(self, value):
        others = world.members[1:]
        while self.group.failed and not world.failed and not all(map(cross_waits.told, others)):
            threading.Event().wait(0.01)
        return self.steps.send(value)


def one_runs_late():
    a, b = dist.new_group([0, 1, 2]), dist.new_group([0, 1, 2])
    real = process_group.run_here
    if rank == 0:
        process_group.run_here = lambda steps: real(Late(steps, a))
    try:
        dist.all_reduce(ONE.copy(), group=a if rank == 0 else b)
    finally:
        process_group.run_here = real


for case in (two_groups, started_and_awaited, one_receives, both_receive, one_runs_late):
    try:
        case()
    except CollectiveMismatchError as error:
        print(f"{case.__name__}: {error}", flush=True)
    dist.barrier()

# Another thread calls operations here, too: it may still come, so that the deadline decides. Rank 0
# begins to wait when it was told what the others wait in, and ends their wait with its own.
a, b = dist.new_group([0, 1, 2]), dist.new_group([0, 1, 2])
helps = threading.Event()
helper = threading.Thread(target=lambda: (dist.new_group([rank]), dist.barrier(), helps.wait()))
helper.start()
dist.barrier()
while rank == 0 and not all(map(cross_waits.told, world.members[1:])):
    helps.wait(0.01)
try:
    dist.all_reduce(ONE.copy(), group=a if rank == 0 else b, timeout=40.0 if rank else 1.0)
except CallTimeoutError as error:
    print(f"deadline: {error}", flush=True)
    b.abort(error)
helps.set()
helper.join()
dist.barrier()
dist.destroy_process_group()
"""

WAITS = "waits in"
REDUCE = "all_reduce(op=SUM, dtype=float64, shape=(3,)), number 1 of group '[0, 1, 2]"
ADVICE = "each waits for the other; all ranks must call the same operations"


def test_ranks_that_wait_for_each_other_are_told(programs: Programs) -> None:
    for program in programs.ranks(programs.script(CROSS_WAITS), 3):
        said = dict(line.split(": ", 1) for line in program.wait().splitlines() if ": " in line)
        for case, number in (("two_groups", ""), ("started_and_awaited", " #3")):
            assert f"rank 0 ('worker0') waits in {REDUCE}{number}', but rank " in said[case]
            assert ADVICE in said[case]
        assert "rank 0 ('worker0') waits in recv(" in said["one_receives"]
        assert f"but rank 1 ('worker1') {WAITS} {REDUCE}" in said["one_receives"]
        assert "rank 0 ('worker0') waits in recv(" in said["both_receive"]
        assert "but rank 1 ('worker1') waits in recv(" in said["both_receive"]
        assert f"rank 0 ('worker0') {WAITS} {REDUCE}" in said["one_runs_late"]
        assert "took longer than 1 s: not entered by rank" in said["deadline"]
        for r in (1, 2):
            assert f"rank {r} ('worker{r}'), which {WAITS} {REDUCE}" in said["deadline"]


FORMS_INSTEAD = """
from telegrad import collectives as dist
from telegrad.collectives import failure
from telegrad.errors import CollectiveMismatchError

failure.TELL_AFTER = 0.2
world = dist.init_process_group()
try:
    dist.barrier() if world.rank == 0 else dist.new_group([0, 1])
except CollectiveMismatchError as error:
    print(error, flush=True)
"""


def test_a_rank_that_forms_a_group_while_another_waits_elsewhere(programs: Programs) -> None:
    """As in new_subgroups_by_enumeration with another partition on each rank."""
    for program in programs.ranks(programs.script(FORMS_INSTEAD), 2):
        said = program.wait()
        assert "rank 0 ('worker0') waits in barrier(), number 1 of group 'world'" in said
        assert f"but rank 1 ('worker1') {WAITS} new_group([0, 1])" in said
        assert ADVICE in said


LATE = """
import signal
import threading
from collections import defaultdict
from telegrad import collectives as dist, rpc
from telegrad.collectives import failure
from telegrad.collectives.groups.cross_waits import CrossWaits
from telegrad.errors import CallTimeoutError

HAPPENED = defaultdict(threading.Event)
MAIN = threading.get_ident()


def look(*given):  # if another rank, for which this one waits, waits for this one
    end_wait_for(*given)
    HAPPENED["looked"].set()


failure.TELL_AFTER = 0.2
end_wait_for, CrossWaits.end_wait_for = CrossWaits.end_wait_for, look


def await_here(event):
    HAPPENED[event].wait()
    HAPPENED[event].clear()


def has_happened(event):
    return HAPPENED[event].is_set()


def ring():
    signal.pthread_kill(MAIN, signal.SIGUSR1)


def await_other(event="looked"):
    rpc.rpc_sync(1 - rank, await_here, (event,))


def join():
    global world, rank
    world = dist.init_process_group()
    rank = world.rank


def rejoin():
    dist.destroy_process_group()
    join()


def be_late(r):  # the other rank has waited, has told so, and has looked
    if rank == r:
        await_other()


def group_is_left():
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    be_late(0)
    dist.barrier(first)
    dist.destroy_process_group(first)
    be_late(1)
    dist.barrier(second)


def late_to_new_group():
    first = dist.new_group([0, 1])
    be_late(0)
    dist.barrier(first)
    dist.destroy_process_group(first)
    be_late(1)
    dist.new_group([0, 1])


def world_is_left():
    be_late(0)
    dist.barrier()
    rejoin()
    be_late(1)
    dist.barrier()


def after_a_timeout():
    if rank == 0:
        await_other("timeout")
    try:
        dist.barrier(timeout=1.0)
    except CallTimeoutError:
        HAPPENED["timeout"].set()
    HAPPENED["looked"].clear()
    rejoin()
    be_late(1)
    dist.barrier()


def waits_for_a_while():
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    if rank == 0:
        work = dist.barrier(first, async_op=True)
        while not rpc.rpc_sync(1, has_happened, ("looked",)):
            try:
                work.wait(timeout=0.5)
            except CallTimeoutError:
                pass
    dist.barrier(second)
    dist.barrier(first) if rank == 1 else work.wait()
    HAPPENED["looked"].clear()


class Alarm(Exception):
    pass


def raise_alarm(*_):
    raise Alarm


def leaves_a_wait():
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    be_late(1)
    if rank == 0:
        signal.signal(signal.SIGUSR1, raise_alarm)
        work = dist.barrier(first, async_op=True)
        try:
            work.wait()
        except Alarm:
            pass
    else:
        rpc.rpc_sync(0, ring)
    be_late(0)
    dist.barrier(second)
    dist.barrier(first) if rank == 1 else work.wait()


def group_is_never_made_here():
    dist.destroy_process_group()
    if rank == 0:
        join()
        try:
            dist.barrier(timeout=1.0)
        except CallTimeoutError:
            dist.destroy_process_group()
        HAPPENED["looked"].clear()
        HAPPENED["left"].set()
    else:
        await_other("left")
    group = dist.new_group([0, 1])
    be_late(0)
    dist.barrier(group)


rpc.init_rpc()
join()
for case in (
    group_is_left,
    late_to_new_group,
    world_is_left,
    after_a_timeout,
    waits_for_a_while,
    leaves_a_wait,
    group_is_never_made_here,
):
    dist.barrier()
    case()
    print(f"{case.__name__}: sound", flush=True)
rpc.shutdown()
"""


def test_a_late_rank_ends_no_sound_group(programs: Programs) -> None:
    """A rank remembered for ever that another one had once waited, in a group that is gone."""
    for program in programs.ranks(programs.script(LATE), 2):
        assert program.wait().count("sound") == 7
