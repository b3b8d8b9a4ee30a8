"""Programs that are forked do what executed ones do, and are children of the process that asks."""

from __future__ import annotations

import ast
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from telegrad.testing import fork_server
from telegrad.testing.fork_server import ForkedProcess, ForkServer
from telegrad.testing.leaks import child_processes

if sys.platform != "linux":
    pytest.skip("the kernel gives orphans to whom asks for them on Linux", allow_module_level=True)

# What a program sees of how it was started.
REPORT = """
import os, signal, sys, threading
import numpy
main = sys.modules["__main__"]
print({
    "argv": sys.argv,
    "orig_argv": sys.orig_argv[1:],
    "path": sys.path,
    "main": {name: str(value) for name, value in sorted(vars(main).items())
             if name in ("__name__", "__file__", "__package__", "__cached__")},
    "spec": getattr(main.__spec__, "name", None),
    "loader": type(getattr(main, "__loader__", None)).__name__,
    "directory": os.getcwd(),
    "environment": {name: value for name, value in os.environ.items()
                    if not name.startswith("GRPC_")},
    "parent": os.getppid(),
    "session": os.getsid(0) == os.getpid(),
    "descriptors": sorted(int(number) for number in os.listdir("/proc/self/fd"))[:-1],
    "streams": [os.readlink(f"/proc/self/fd/{number}") for number in range(2)],
    "signals": [str(signal.getsignal(number)) for number in range(1, 32)],
    "threads": len(os.listdir("/proc/self/task")),
    "flags": str(sys.flags),
    "output": [sys.stdout.write_through, sys.stdout.encoding, sys.stderr.errors],
    "command": open("/proc/self/cmdline").read()[:200].rstrip(chr(0)),  # a long one is cut
})
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    made = ForkServer()
    yield made
    made.close()


Start = Callable[..., str]


@pytest.fixture
def output_of(server: ForkServer, tmp_path: Path) -> Start:
    """Runs a command to its end."""

    def run(*words: str | Path, executed: bool = False, **options: Any) -> str:
        command = [sys.executable, *map(str, words)]
        environment = os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONPATH": str(tmp_path / "more")}
        given = {"env": environment, "stdin": subprocess.DEVNULL, "cwd": tmp_path, **options}
        with (tmp_path / "output").open("w") as file:
            given |= {"stdout": file, "stderr": subprocess.STDOUT}
            if executed:
                assert subprocess.run(command, **given, check=False).returncode == 0
            else:
                assert server.can_fork(command, environment)
                assert ForkedProcess(command, server=server, **given).wait(30.0) == 0
        return (tmp_path / "output").read_text()

    return run


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["file", "relative file", "code", "module"])
def test_a_program_sees_what_an_executed_one_sees(
    output_of: Start, tmp_path: Path, kind: str
) -> None:
    (tmp_path / "report.py").write_text(REPORT)
    words: dict[str, list[str | Path]] = {
        "file": [tmp_path / "report.py"],
        "relative file": ["report.py"],
        "code": ["-c", REPORT],
        "module": ["-m", "report"],
    }
    with (tmp_path / "report.py").open() as inherited:
        options = {"pass_fds": [inherited.fileno()], "start_new_session": kind == "code"}
        found = [
            ast.literal_eval(
                output_of(*words[kind], "an", "argument", executed=executed, **options)
            )
            for executed in (False, True)
        ]
    assert found[0] == found[1]
    assert found[0]["parent"] == os.getpid()


@pytest.mark.parametrize(
    ("code", "ends"),
    [
        ("pass", 0),
        ("raise SystemExit(7)", 7),
        ("raise SystemExit('a reason')", 1),
        ("1 / 0", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("import os; os._exit(9)", 9),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
    ],
)
def test_a_program_ends_as_an_executed_one(server: ForkServer, code: str, ends: int) -> None:
    program = ForkedProcess([sys.executable, "-c", code], server=server, stderr=subprocess.DEVNULL)
    assert program.wait(30.0) == ends


def test_an_error_is_shown_from_the_programs_first_line_on(
    server: ForkServer, tmp_path: Path
) -> None:
    file = tmp_path / "fails.py"
    file.write_text("def fail():\n    1 / 0\n\nfail()\n")
    command = [sys.executable, str(file)]
    forked = ForkedProcess(command, server=server, stderr=subprocess.PIPE)
    shown = subprocess.run(command, stderr=subprocess.PIPE, check=False).stderr
    assert forked.communicate(timeout=30.0)[1] == shown


def test_its_session_is_there_as_soon_as_its_process_id_is(server: ForkServer) -> None:
    """What ends a session that is not there yet ends nothing, and waits for the program for ever."""
    code = "import time; time.sleep(600)"
    for _ in range(10):
        program = ForkedProcess([sys.executable, "-c", code], server=server, start_new_session=True)
        os.killpg(program.pid, signal.SIGKILL)
        assert program.wait(30.0) == -signal.SIGKILL


def test_the_interpreter_ends_in_order(output_of: Start) -> None:
    code = (
        "import atexit, threading, time; atexit.register(print, 'at the exit'); "
        "threading.Thread(target=lambda: (time.sleep(0.01), print('a thread'))).start()"
    )
    assert output_of("-c", code) == "a thread\nat the exit\n"


def test_programs_have_random_numbers_of_their_own(output_of: Start) -> None:
    code = "import random, numpy, uuid; print(random.random(), numpy.random.random(), uuid.uuid4())"
    numbers = [number for _ in range(3) for number in output_of("-c", code).split()]
    assert len(set(numbers)) == 9


@pytest.mark.parametrize("variable", ["OMP_NUM_THREADS", "GRPC_VERBOSITY", "PYTHONHASHSEED"])
def test_what_an_interpreter_reads_at_its_start_has_it_executed(
    server: ForkServer, variable: str
) -> None:
    code = f"import os; print(os.environ[{variable!r}])"
    for value in ("1234", "0"):
        program = ForkedProcess(
            [sys.executable, "-c", code],
            server=server,
            env=os.environ | {variable: value},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert program.communicate(timeout=30.0) == (f"{value}\n", None)


@pytest.mark.parametrize("command", [["sleep", "0"], ["-X", "dev", "-c", "pass"], []])
def test_other_commands_are_executed(server: ForkServer, command: list[str]) -> None:
    words = command if command[:1] == ["sleep"] else [sys.executable, *command]
    assert not server.can_fork(words, os.environ)
    assert ForkedProcess(words, server=server, stdin=subprocess.DEVNULL).wait(30.0) == 0


@pytest.mark.long
def test_another_server_is_started_when_one_has_ended(server: ForkServer) -> None:
    command = [sys.executable, "-c", "raise SystemExit(3)"]
    assert ForkedProcess(command, server=server).wait(30.0) == 3
    server.close()
    others = child_processes().keys()
    assert ForkedProcess(command, server=server).wait(30.0) == 3
    (pid,) = child_processes().keys() - others
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert ForkedProcess(command, server=server).wait(30.0) == 3


STARTS_ANOTHER = """
import os, subprocess, sys
told = "import os, sys; print(os.getppid(), 'wave' in sys.modules, os.getsid(0))"
for command in ([sys.executable, "-c", told], [sys.executable, "-E", "-c", told]):
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    print(found == [str(os.getpid()), str("-E" not in command), str(os.getsid(0))], found)
"""


def test_a_program_forks_what_it_starts_itself(output_of: Start) -> None:
    lines = output_of("-c", STARTS_ANOTHER, preload=["wave"], start_new_session=True).splitlines()
    assert [line.split()[0] for line in lines] == ["True", "True"], lines


@pytest.mark.long
def test_a_server_that_does_not_answer_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request fails within the deadline, and the next one gets a server that answers."""
    ours, theirs = socket.socketpair()
    server = ForkServer()
    command = [sys.executable, "-c", "pass"]
    given: dict[str, Any] = {
        "directory": None,
        "environment": dict(os.environ),
        "new_session": False,
    }
    with theirs, monkeypatch.context() as patch:
        patch.setattr(fork_server, "START_SECONDS", 0.05)
        server.attach(ours)
        with pytest.raises(TimeoutError):
            server.start(command, descriptors={0: 0, 1: 1, 2: 2}, **given)
    pid = server.start(command, descriptors={0: 0, 1: 1, 2: 2}, **given)
    assert os.waitpid(pid, 0) == (pid, 0)
    server.close()
