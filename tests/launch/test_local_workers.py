"""LocalWorkers with real processes: what a notebook, a script and a user's tests do with them."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from telegrad import collectives as dist
from telegrad import rpc
from telegrad.errors import (
    AlreadyInitializedError,
    CallRefusedError,
    DuplicateNameError,
    NotInitializedError,
    RendezvousError,
    RendezvousTimeoutError,
    WorkerLostError,
)
from telegrad.launch import LocalWorkers
from telegrad.launch.local_workers import _Importer
from telegrad.launch.log_relay import LineChannel
from telegrad.testing import Cluster, leaks
from telegrad.transport import shared_loop_thread
from tests.conftest import Program, Programs
from tests.launch.test_run import wait_until_gone

pytestmark = pytest.mark.usefixtures("forked_processes")

CLOSED = "its LocalWorkers were closed"
OPTIONS = rpc.RpcOptions(token="a token that only the tests use", timeout=40.0)


@pytest.fixture
def agent() -> Iterator[rpc.Agent]:
    with rpc.init_rpc("me", options=OPTIONS) as started:
        yield started


def names_of_all() -> list[str]:
    return [info.name for info in rpc.get_worker_infos()]


def ask(name: str) -> list[str]:
    return rpc.rpc_sync(name, names_of_all)


def only_names_of_all(caller: rpc.WorkerInfo, module: str, qualname: str) -> bool:
    return caller.name == "me" and module == __name__ and qualname == "names_of_all"


@pytest.mark.long
def test_a_function_decides_what_may_be_called_on_them() -> None:
    options = dataclasses.replace(OPTIONS, callables=only_names_of_all)
    with rpc.init_rpc("me", options=options), LocalWorkers(1) as workers:
        assert rpc.rpc_sync(workers.names[0], names_of_all) == ["me", *workers.names]
        with pytest.raises(CallRefusedError, match="says no"):
            rpc.rpc_sync(workers.names[0], report, ("x",))


def report(text: str) -> int:
    sys.stdout.write(f"{text}\nto ")
    sys.stdout.write("one line")
    sys.stderr.write("to the other\n")
    return os.getpid()


def stay() -> None:
    signal.pause()


class Counter:
    def __init__(self) -> None:
        self.n = 0

    def count(self) -> int:
        self.n += 1
        return self.n


@pytest.mark.long
def test_they_serve_and_end_and_come_again(
    agent: rpc.Agent, capsys: pytest.CaptureFixture[str]
) -> None:
    with LocalWorkers(2) as workers:
        assert workers.names == ("worker1", "worker2")
        assert agent.world_size == 3
        assert names_of_all() == ["me", "worker1", "worker2"]
        assert ask("worker1") == ask("worker2") == ["me", "worker1", "worker2"]
        assert rpc.rpc_sync("worker1", ask, ("worker2",)) == ["me", "worker1", "worker2"]
        assert rpc.rpc_sync("worker1", ask, ("me",)) == ["me", "worker1", "worker2"]
        np.testing.assert_array_equal(rpc.rpc_sync(2, np.square, (np.arange(3.0),)), [0, 1, 4])
        counter = rpc.remote("worker2", Counter)
        assert [counter.rpc_sync().count() for _ in range(2)] == [1, 2]
        pid = rpc.rpc_sync("worker1", report, ("hello",))
        assert pid != os.getpid()
        assert re.fullmatch(
            rf"<LocalWorkers worker1 \(process {pid}\), worker2 \(process \d+\)>", repr(workers)
        )
        running = rpc.rpc_async("worker2", stay)
    with pytest.raises(WorkerLostError, match=f"'worker2' .*{CLOSED}"):
        running.wait()
    with pytest.raises(WorkerLostError, match=f"'worker1' .*{CLOSED}"):
        rpc.rpc_sync("worker1", ask, ("me",))
    assert repr(workers) == "<LocalWorkers worker1, worker2: closed>"
    workers.close()
    assert names_of_all() == ["me"]
    assert agent.world_size == 1
    written = capsys.readouterr()
    assert written.out == "[worker1] hello\n[worker1] to one line\n"
    assert written.err == "[worker1] to the other\n"
    again = LocalWorkers(names=["left"])
    assert rpc.get_worker_info("left").rank == 1
    with pytest.raises(DuplicateNameError, match="the name 'LEFT' is taken by rank 1"):
        LocalWorkers(names=["LEFT"])
    assert ask("left") == ["me", "left"]
    rpc.shutdown()
    assert repr(again) == "<LocalWorkers left: closed>"


def test_what_the_program_imports_later_is_served_or_said_to_fail_there(
    agent: rpc.Agent,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = "from dataclasses import dataclass\n@dataclass\nclass Config:\n    x: int\n"
    with LocalWorkers(1):
        (tmp_path / "written_later.py").write_text(
            text + "def double(c): return Config(2 * c.x)\ndef plain(x): return x\n"
        )
        (tmp_path / "never_imported.py").write_text("raise SystemExit\n")
        monkeypatch.syspath_prepend(tmp_path)
        later = __import__("written_later")
        try:
            assert rpc.rpc_sync("worker1", later.double, (later.Config(21),)) == later.Config(42)
            assert rpc.rpc_sync("worker1", later.plain, (1,)) == 1
        finally:
            del sys.modules["written_later"]
        path = tmp_path / "only_here.py"
        path.write_text("def f(): return 1\n")
        module = __import__("only_here")
        path.write_text("import no_such_module_anywhere\n")
        try:
            with pytest.raises(LookupError, match="'worker1' has not imported 'only_here'"):
                rpc.rpc_sync("worker1", module.f)
        finally:
            del sys.modules["only_here"]
    written = capsys.readouterr().err
    assert "[worker1] this worker cannot import 'only_here', which the program has:" in written
    assert "[worker1] ModuleNotFoundError: No module named 'no_such_module_anywhere'" in written


def test_nothing_is_imported_on_the_loop() -> None:
    """A peer that named a class in a protocol message had the loop ask, wait and run a module."""
    ours, theirs = socket.socketpair()
    channel, loop = LineChannel(ours), shared_loop_thread().acquire()
    importer = _Importer(channel)

    async def read_a_message() -> None:
        importer("a_module_of_the_program")

    try:
        loop.run(read_a_message())
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)
    finally:
        loop.release()
        channel.close()
        theirs.close()
        assert list(channel.messages()) == []


@pytest.mark.long
def test_a_killed_worker_fails_its_calls_alone(
    agent: rpc.Agent, capsys: pytest.CaptureFixture[str]
) -> None:
    with LocalWorkers(2) as workers:
        pid = rpc.rpc_sync("worker1", os_getpid)
        running = rpc.rpc_async("worker1", stay)
        assert ask("worker1") == ["me", "worker1", "worker2"]
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerLostError, match="'worker1'"):
            running.wait(30)
        assert ask("worker2")
        shown = f"worker1 (process {pid}, ended), worker2"  # its sockets close before it has ended
        leaks.wait_until_gone("worker", lambda: [] if shown in repr(workers) else [repr(workers)])
    assert "[worker1] was killed by SIGKILL" in capsys.readouterr().err


def os_getpid() -> int:
    return os.getpid()


def sum_of_ranks_in_a_world_of(n: int) -> tuple[int, float]:
    group = dist.init_process_group(world_size=n)
    array = np.full(2, float(group.rank))
    dist.all_reduce(array)
    return group.size, float(array[0])


def leave_the_world() -> None:
    dist.destroy_process_group()


@pytest.mark.long
def test_a_notebook_is_rank_0_of_a_world_of_its_workers(agent: rpc.Agent) -> None:
    """The program has joined a job of one, and says how many it means now.

    How often a worker had made a world counted once: those that came later waited for another one.
    """

    def everywhere(names: tuple[str, ...], n: int) -> list[tuple[int, float]]:
        later = [rpc.rpc_async(each, sum_of_ranks_in_a_world_of, (n,)) for each in names]
        found = [sum_of_ranks_in_a_world_of(n), *rpc.wait_all(later)]
        rpc.wait_all([rpc.rpc_async(each, leave_the_world) for each in names])
        leave_the_world()
        return found

    with LocalWorkers(2) as workers:
        assert everywhere(workers.names, 3) == [(3, 3.0)] * 3
        with LocalWorkers(1) as one_more:
            # The world is what was asked for, whoever has joined meanwhile.
            assert everywhere(workers.names, 3) == [(3, 3.0)] * 3
            assert everywhere((*workers.names, *one_more.names), 4) == [(4, 6.0)] * 4
            assert everywhere((), 1) == [(1, 0.0)]
            with pytest.raises(AlreadyInitializedError, match=r"world_size=1, of 4 ranks now"):
                dist.init_process_group(world_size=5)
            with pytest.raises(ValueError, match=r"has rank 1 and is in no group of 1"):
                rpc.rpc_sync(workers.names[0], sum_of_ranks_in_a_world_of, (1,))


def start_in_a_session_of_its_own() -> int:
    return subprocess.Popen(["sleep", "1000"], start_new_session=True).pid


@pytest.mark.long
def test_what_a_worker_has_detached_does_not_hold_up_the_close(agent: rpc.Agent) -> None:
    """It keeps the worker's output open, whose end was waited for."""
    workers = LocalWorkers(1)
    detached = rpc.rpc_sync("worker1", start_in_a_session_of_its_own)
    try:
        workers.close()
        os.kill(detached, 0)
    finally:
        os.kill(detached, signal.SIGKILL)
    with leaks.no_leaked_descriptors():  # the agent keeps what its first peer makes it open
        with LocalWorkers(1):
            assert ask("worker1")


@pytest.mark.parametrize(
    ("arguments", "names", "words"),
    [
        ((), None, r"at least one worker \(got 0\); write LocalWorkers\(2\)"),
        ((0,), None, "at least one worker"),
        ((True,), None, "takes a number of workers"),
        (("2",), None, "takes a number of workers"),
        ((2,), ["a"], r"\(names: 1, workers: 2\)"),
        ((), "ab", r"write \['ab'\]"),
    ],
)
def test_bad_arguments(arguments: tuple[int], names: list[str] | None, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        LocalWorkers(*arguments, names=names)


def test_without_an_agent_or_out_of_reach() -> None:
    with pytest.raises(NotInitializedError, match=r"call rpc\.init_rpc\(\) first"):
        LocalWorkers(1)
    with pytest.raises(ValueError, match="timeout must be above 0"):
        LocalWorkers(1, timeout=0)
    with Cluster(1) as cluster:
        with pytest.raises(RendezvousError, match="no other process can join the job at inproc"):
            cluster.call(0, LocalWorkers, 1)


def test_a_start_that_takes_too_long_leaves_nothing(agent: rpc.Agent) -> None:
    with pytest.raises(
        RendezvousTimeoutError, match=r"was not (ready|joined) within 0\.01 s; give it lon"
    ):
        LocalWorkers(2, timeout=0.01)
    assert agent.world_size == 1


# -- as scripts -------------------------------------------------------------------------------

HEAD = """
import os, signal, sys
from telegrad import launch, rpc

def where():
    return os.getpid()

def family():
    import subprocess
    return subprocess.Popen(["sleep", "600"]).pid

class Point:
    pass

print("imported as", __name__)
"""


@pytest.fixture
def script(programs: Programs) -> Callable[..., Program]:
    """Starts a program whose main part is given."""

    def start(main: str, *arguments: str, guard: bool = True, head: str = HEAD) -> Program:
        body = textwrap.dedent(main).strip()
        if guard:
            body = 'if __name__ == "__main__":\n' + textwrap.indent(body, "    ")
        path = programs.script(f"{head}\n{body}\n")
        env = {"TELEGRAD_TOKEN": "a token that only the tests use"}
        return programs.start(["python", path, *arguments], env=env, preload=[])

    return start


def pids(program: Program) -> list[int]:
    return [int(number) for number in re.findall(r"pid=(\d+)", program.output)]


def test_functions_of_a_script(script: Callable[..., Program]) -> None:
    program = script(
        """
        rpc.init_rpc("me")
        with launch.LocalWorkers(1) as workers:
            assert rpc.rpc_sync("worker1", where) != os.getpid()
            kept = rpc.remote("worker1", Point)
            assert "Point" in repr(kept) or "a value" in repr(kept)  # before the owner tells
            kept.release()
            rpc.shutdown()
        print("well", sys.argv[1:])
        """,
        "--epochs",
    )
    assert program.wait().splitlines() == [
        "imported as __main__",
        "[local 1] imported as __mp_main__",
        "well ['--epochs']",
    ]


def test_a_script_without_a_guard_is_told_so(script: Callable[..., Program]) -> None:
    program = script('rpc.init_rpc("me")\nlaunch.LocalWorkers(1)\nprint("never here")', guard=False)
    output = program.wait(code=1)
    assert (
        "RendezvousError: local worker 'local 1' did not start: InvalidUseError: this script st"
        in (output)
    )
    assert 'put what the program does under `if __name__ == "__main__":`' in output
    assert "never here" not in output


def test_a_script_that_fails_to_import_is_shown(script: Callable[..., Program]) -> None:
    program = script(
        "if __name__ == '__mp_main__': raise ValueError('not twice')\n"
        'rpc.init_rpc("me")\nlaunch.LocalWorkers(2)',
        guard=False,
    )
    output = program.wait(code=1)
    assert "did not start: ValueError: not twice" in output
    assert "[local 1] ValueError: not twice" in output


def test_they_end_with_a_program_that_forgets_them(script: Callable[..., Program]) -> None:
    program = script(
        """
        rpc.init_rpc("me")
        launch.LocalWorkers(2)
        print(*(f"pid={rpc.rpc_sync(i, where)}" for i in (1, 2)), flush=True)
        raise ValueError("oops")
        """
    )
    program.wait(code=1)
    assert len(pids(program)) == 2
    wait_until_gone(pids(program))


START_AND_WAIT = """
rpc.init_rpc("me")
with launch.LocalWorkers(2):
    print(*(f"pid={rpc.rpc_sync(i, where)}" for i in (1, 2)))
    print(f"pid={rpc.rpc_sync(1, family)}")
    if os.fork() == 0:
        signal.pause()
    rpc.rpc_async(1, signal.pause)
    print("ready", flush=True)
    signal.pause()
"""


# The kernel closes a dead program's sockets first: a worker may hear of them before it hears of the
# end.
HEARS_LATE = """
from telegrad.launch import local_workers
end_session = local_workers.end_session

def end_late():
    import time
    time.sleep(0.5)
    end_session()

local_workers.end_session = end_late
"""


@pytest.mark.parametrize("late", ["", HEARS_LATE], ids=["at once", "late"])
def test_they_end_when_the_program_is_killed(script: Callable[..., Program], late: str) -> None:
    """Also when a process that the program forked still holds its descriptors."""
    program = script(START_AND_WAIT, head=HEAD + late)
    program.wait_for("ready")
    program.process.kill()
    program.wait(code=-signal.SIGKILL)
    assert len(pids(program)) == 3
    wait_until_gone(pids(program))
    with suppress(ProcessLookupError):
        os.killpg(program.process.pid, signal.SIGKILL)


def test_an_interrupt_reaches_the_program_alone(script: Callable[..., Program]) -> None:
    program = script(
        """
        rpc.init_rpc("me")
        with launch.LocalWorkers(1):
            try:
                print(f"pid={rpc.rpc_sync(1, where)}")
                print("ready", flush=True)
                signal.pause()
            except KeyboardInterrupt:
                print("still there:", rpc.rpc_sync(1, where) in map(int, sys.argv[1:] or [0]))
                print("interrupted", flush=True)
        """
    )
    program.wait_for("ready")
    os.killpg(program.process.pid, signal.SIGINT)
    output = program.wait()
    assert "interrupted" in output
    assert "Traceback" not in output
    wait_until_gone(pids(program))


def test_an_interrupt_of_the_start_leaves_nothing(script: Callable[..., Program]) -> None:
    program = script(
        """
        rpc.init_rpc("me")
        try:
            launch.LocalWorkers(1)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        """,
        head=HEAD + "if __name__ == '__mp_main__':\n    print(f'pid={os.getpid()}', flush=True)\n"
        "    signal.pause()\n",
    )
    program.wait_for("pid=")
    os.kill(program.process.pid, signal.SIGINT)
    assert "interrupted" in program.wait()
    wait_until_gone(pids(program))


@pytest.mark.long
def test_under_telegrad_run(programs: Programs) -> None:
    """Every worker of the job knows those on top, and any of them may start some."""
    path = programs.script(
        HEAD
        + textwrap.dedent(
            """
            def names_at(name):
                return rpc.rpc_sync(name, names)

            def names():
                return [info.name for info in rpc.get_worker_infos()]

            if __name__ == "__main__":
                with rpc.init_rpc() as agent:
                    if agent.rank == 1:
                        with launch.LocalWorkers(1) as workers:
                            print(workers.names, rpc.rpc_sync("worker0", names_at, ("worker2",)))
            """
        )
    )
    output = programs.run(["telegrad", "run", "--nproc-per-node", "2", path])
    assert "[1] ('worker2',) ['worker0', 'worker1', 'worker2']" in output


def test_module_of_a_package(programs: Programs, tmp_path: Path) -> None:
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "tool.py").write_text("def half(x): return x / 2\n")
    (package / "app.py").write_text(
        "from pkg.tool import half\nfrom telegrad import launch, rpc\n"
        "def twice(x): return 2 * x\n"
        "if __name__ == '__main__':\n"
        "    rpc.init_rpc('me')\n"
        "    with launch.LocalWorkers(1):\n"
        "        print(rpc.rpc_sync(1, twice, (3,)), rpc.rpc_sync(1, half, (3,)))\n"
    )
    env = {"PYTHONPATH": f"{Path.cwd()}:{tmp_path}", "TELEGRAD_TOKEN": "a token only of the tests"}
    assert "6 1.5" in programs.run(["python", "-m", "pkg.app"], env=env, preload=[])


PROGRAM_WITHOUT_A_FILE = """
import operator
from telegrad import launch, rpc

def f():
    return 1

with rpc.init_rpc("me"):
    print(rpc.rpc_sync("me", f))
    with launch.LocalWorkers(1) as workers:
        print(rpc.rpc_sync(workers.names[0], operator.add, (1, 1)))
        try:
            rpc.rpc_sync(workers.names[0], f)
        except TypeError as error:
            print(type(error).__name__, error)
"""


def test_a_program_that_is_no_file_hears_so_before_anything_is_sent(programs: Programs) -> None:
    output = programs.run(["python", "-c", PROGRAM_WITHOUT_A_FILE], preload=[])
    assert output.splitlines()[:2] == ["1", "2"]
    assert (
        "EncodeError f is defined in a program that is no file (python -c, or standard input), "
        "which local workers cannot import; write it to a file mycode.py, run `from mycode import "
        "f`, and call that"
    ) in output


CELLS_OF_AN_EDITOR = """
import os, sys
from pathlib import Path
from IPython.core.interactiveshell import InteractiveShell

os.chdir(sys.argv[1])
times = iter(range(10**9, 10**11, 10**9))  # else two writes may have one time

def write(name, text):
    Path(name).write_text(text)
    os.utime(name, ns=(0, next(times)))

def run(cell):
    shell.run_cell(cell).raise_error()

shell = InteractiveShell.instance()
write("steps.py", "")
write("alone.py", "")
write("last.py", "def nothing(): pass")
write("tool.py", "import steps\\ndef half(x): return x / 2")
run("import importlib, alone, last, tool; from telegrad import launch, rpc; rpc.init_rpc('me')")
call = "print('half', rpc.rpc_sync(1, importlib.reload(tool).half, (3,)), flush=True)"
# The worker asks for the last module when all that was said of the others has arrived.
begin = f"workers = launch.LocalWorkers(1); {call}; rpc.rpc_sync(1, last.nothing)"
for text in ("import steps\\ndef half(x): return x // 2", "import steps\\ndef half(x): return 7"):
    run(begin)
    write("tool.py", text)
    write("alone.py", text)
    run(call)
    run(call)
    write("steps.py", "")
    run(call)
    run("workers.close()")
run("rpc.shutdown()")
write("tool.py", "")
run("print('end')")
"""


@pytest.mark.long
def test_a_notebook_hears_once_that_workers_have_a_module_as_it_was(programs: Programs) -> None:
    """Also a module that another one has imported there; not one that only the notebook has."""
    script = programs.script(CELLS_OF_AN_EDITOR)
    places = f"{Path.cwd()}:{programs.directory}"
    env = {"PYTHONPATH": places, "IPYTHONDIR": str(programs.directory), "TELEGRAD_TOKEN": "x" * 32}
    output = programs.run(["python", script, programs.directory], env=env, preload=[])
    told = re.findall(r"half \S+|\w+(?=' was edited after 'worker1' imported it)|end$", output)
    first = ["half 1.5", "tool", "half 1.5", "half 1.5", "steps", "half 1.5"]
    again = ["half 1", "tool", "half 1", "half 1", "steps", "half 1"]
    assert told == [*first, *again, "end"]
