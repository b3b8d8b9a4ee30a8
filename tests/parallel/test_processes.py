"""`parallel.spawn` with real processes: what they share, and how each end of one is told."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from telegrad import collectives as dist
from telegrad import parallel, rpc
from telegrad.arrays import shared_empty
from telegrad.errors import EncodeError, InvalidUseError, WorkerLostError
from telegrad.launch.local_workers import LOADING, LocalProcess
from telegrad.types import Array
from tests.conftest import Programs
from tests.launch.test_run import wait_until_gone
from tests.parts import needs_memory

pytestmark = pytest.mark.usefixtures("forked_processes")


def train(rank: int, sums: Array, own: Array, options: dict[str, Any]) -> None:
    """Adds up over all ranks, and writes into both arrays."""
    group = dist.init_process_group()
    assert (group.rank, group.size) == (rank, len(sums))
    x = np.array([rank + options["offset"]])
    dist.all_reduce(x)
    sums[rank] = x[0] + own.sum()
    own[:] = -1.0
    dist.destroy_process_group()
    sys.stdout.write(f"from {rank}\n")
    sys.stderr.write("to the other\n")


@pytest.mark.long
@needs_memory
def test_the_processes_form_a_job_and_share_memory_that_can_be_shared(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Their output appears here with the rank."""
    whole = shared_empty((4, 4))
    own = np.ones(3)
    assert parallel.spawn(train, (whole[1:, 2], own, {"offset": 0.5}), nprocs=3) is None
    expected = np.zeros((4, 4))
    expected[1:, 2] = 0 + 1 + 2 + 3 * 0.5 + 3
    np.testing.assert_array_equal(whole, expected)
    np.testing.assert_array_equal(own, np.ones(3))
    shown = capsys.readouterr()
    assert sorted(shown.out.splitlines()) == ["[0] from 0", "[1] from 1", "[2] from 2"]
    assert sorted(shown.err.splitlines()) == [f"[{r}] to the other" for r in range(3)]


def own_pid() -> int:
    return os.getpid()


def meet(rank: int, times: Array, barrier: Array) -> None:
    with rpc.init_rpc() as agent:
        assert agent.name == f"worker{rank}"
        barrier[rank, 0] = rpc.rpc_sync(f"worker{1 - rank}", own_pid)
    times.view(np.int8)[...] = 1


@pytest.mark.long
@needs_memory
def test_two_arrays_over_one_piece_of_memory_and_calls() -> None:
    memory = shared_empty(8, np.int64)
    context = parallel.spawn(meet, (memory[:1], memory[2:].reshape(3, 2)[::-1]), 2, join=False)
    assert context is not None
    pids = context.pids()
    assert context.join()
    assert context.join()  # again, once all is over
    assert memory[[6, 4]].tolist() == pids[::-1]
    assert memory[0] == 0x0101010101010101


# -- ends ------------------------------------------------------------------------------------------


class Wrong(Exception):
    """An error of the user's own."""


def fail(rank: int, how: str) -> None:
    dist.init_process_group()
    dist.barrier()
    if rank == 1 and how == "raise":
        raise Wrong("no", rank)
    if rank == 1 and how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 1:
        sys.exit(3)
    if rank == 2:
        signal.pause()  # until it is ended
    dist.barrier()


@pytest.mark.long
def test_the_error_of_a_rank_is_raised_by_each_join_with_its_traceback() -> None:
    context = parallel.spawn(fail, ("raise",), nprocs=3, join=False)
    assert context is not None
    errors = []
    for _ in range(2):
        with pytest.raises(Wrong) as raised:
            context.join()
        errors.append(raised.value)
    first, second = errors
    assert first is not second
    assert (first.args, first.__notes__) == (second.args, second.__notes__)
    assert first.args == ("no", 1)
    (note,) = first.__notes__
    assert re.match(r"raised by fail at rank 1 \(process \d+\):\nTraceback", note)
    assert 'raise Wrong("no", rank)' in note
    assert "spawned.py" not in note


@pytest.mark.parametrize(
    ("how", "words"),
    [("kill", "was killed by SIGKILL"), ("exit", "failed with exit code 3")],
)
@pytest.mark.long
def test_a_rank_that_ends_by_itself_is_named(how: str, words: str) -> None:
    context = parallel.spawn(fail, (how,), nprocs=3, join=False)
    assert context is not None
    pids = context.pids()
    with pytest.raises(WorkerLostError, match=rf"rank 1 \({pids[1]}\) {words}, in fail") as raised:
        context.join()
    assert raised.value.worker == "worker1"
    wait_until_gone(pids)


def succeed(rank: int) -> None:
    del rank


@pytest.mark.long
def test_a_program_that_reaps_its_children_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    context = parallel.spawn(succeed, nprocs=2, join=False)
    assert context is not None
    for pid in context.pids():
        assert os.waitpid(pid, 0) == (pid, 0)
    killed: list[int] = []  # the numbers may be those of other processes now
    for name in ("kill", "killpg"):
        monkeypatch.setattr(os, name, lambda pid, _: killed.append(pid))
    assert context.join()
    assert not killed


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Makes the next descriptors greater than those that select() takes."""
    with contextlib.ExitStack() as opened:
        while (descriptor := os.open(os.devnull, os.O_RDONLY)) <= 1100:
            opened.callback(os.close, descriptor)
        opened.callback(os.close, descriptor)
        yield


def test_a_process_that_cannot_be_ended_leaves_the_rest_of_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    context = parallel.spawn(stay, nprocs=3, join=False)
    assert context is not None
    pids, end = context.pids(), LocalProcess.end

    def fail_after(process: LocalProcess, deadline: float) -> None:
        end(process, deadline)
        raise PermissionError(process.pid)

    monkeypatch.setattr(LocalProcess, "end", fail_after)
    with pytest.raises(PermissionError):
        context.close()
    wait_until_gone(pids)


def refuse(rank: int) -> None:
    with rpc.init_rpc():
        dist.init_process_group()
        dist.barrier()
        if rank == 1:
            raise Wrong("first")
        dist.barrier()


@pytest.mark.long
def test_what_others_raise_since_a_rank_left_is_not_the_first_failure() -> None:
    with pytest.raises(Wrong, match="first"):
        parallel.spawn(refuse, nprocs=2)


def stay(rank: int) -> None:
    signal.pause()


@pytest.mark.usefixtures("many_descriptors")
def test_a_wait_with_a_timeout_and_the_end_of_the_block() -> None:
    context = parallel.spawn(stay, nprocs=2, join=False)
    assert context is not None
    with context:
        assert not context.join(0.01)
    wait_until_gone(context.pids())
    context.close()
    with pytest.raises(InvalidUseError, match=r"stay has no result at ranks 0, 1: close\(\) has"):
        context.join()


# -- wrong arguments -------------------------------------------------------------------------------


async def later(rank: int) -> None:
    del rank


@pytest.mark.parametrize(
    ("fn", "args", "nprocs", "error", "words"),
    [
        (lambda rank: None, (), 1, EncodeError, "fn cannot travel"),
        (stay, (object(),), 1, EncodeError, r"args\[0\] cannot travel"),
        (later, (), 1, TypeError, "takes a plain function"),
        (stay, [1], 1, TypeError, "args must be a tuple"),
        (stay, (), 0, ValueError, "nprocs must be at least 1"),
        (stay, (), True, TypeError, "nprocs must be an integer"),
    ],
)
def test_wrong_arguments_are_refused_before_a_process_starts(
    fn: Callable[..., object], args: Any, nprocs: int, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        parallel.spawn(fn, args, nprocs)


# -- programs --------------------------------------------------------------------------------------


def test_a_script_without_a_guard_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOADING, "1")  # as where a process imports the script that has started it
    with pytest.raises(InvalidUseError, match='under `if __name__ == "__main__":`'):
        parallel.spawn(stay, nprocs=2)


WAITING = """
import os, signal, sys
from telegrad import parallel

def work(rank):
    print(f"pid {os.getpid()}", flush=True)
    signal.pause()

if __name__ == "__main__":
    mode = sys.argv[1]
    context = parallel.spawn(work, nprocs=2, join=mode == "join", daemon=mode == "daemon")
    if mode == "error":
        raise RuntimeError("of the program")
    if mode in ("daemon", "main"):
        import time
        while mode == "main" or not os.path.exists(sys.argv[2]):
            time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("mode", "end"),
    [
        ("join", signal.SIGINT),
        ("later", signal.SIGINT),
        ("main", signal.SIGINT),
        ("daemon", None),
        ("join", signal.SIGKILL),  # whatever the program does
    ],
)
@pytest.mark.few(2)
def test_the_end_of_the_program_is_that_of_all(
    programs: Programs, tmp_path: Path, mode: str, end: signal.Signals | None
) -> None:
    """And no directory is left behind."""
    file, folder = tmp_path / "go on", tmp_path / "temporary"
    folder.mkdir()
    environment = {"TMPDIR": str(folder)}
    script = programs.script(WAITING)
    program = programs.start(["python", script, mode, file], preload=[], env=environment)
    program.wait_for("[0] pid ")
    program.wait_for("[1] pid ")
    assert len(list(folder.iterdir())) == 1
    pids = [int(pid) for pid in re.findall(r"pid (\d+)", program.output)]
    if end is None:
        file.touch()
    else:
        program.process.send_signal(end)
    program.wait(code=None)
    wait_until_gone(pids)
    while list(folder.iterdir()):  # after a kill, a process of its own removes it
        time.sleep(0.01)


def test_an_uncaught_error_of_the_program_ends_all(programs: Programs) -> None:
    output = programs.run(["python", programs.script(WAITING), "error"], code=1, preload=[])
    assert "RuntimeError: of the program" in output
