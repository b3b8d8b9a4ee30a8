"""`telegrad run` with real processes: what users do with it, and what may go wrong."""

from __future__ import annotations

import errno
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from telegrad.launch import worker_process
from telegrad.launch.cli import main
from telegrad.testing import leaks
from telegrad.testing.fork_server import ForkedProcess
from telegrad.transport import cores, open_process

ROOT = Path(__file__).parents[2]
LIMIT = 40.0  # seconds for any one thing to happen; nothing here takes a tenth of it
# What telegrad chooses for its workers where nobody has chosen.
UNLIMITED = (
    "import os, sys; from telegrad.launch.cli import main\n"
    "for name in [*os.environ]:\n"
    "    if name.endswith('_NUM_THREADS'): del os.environ[name]\n"
    "sys.exit(main())"
)
RUN = [sys.executable, "-c", UNLIMITED, "run"]
FORKED_WORKERS = [sys.executable, "-m", "tests.forked_launcher"]


class Run:
    """A launcher in a session of its own, whose output is read as it comes."""

    def __init__(
        self,
        directory: Path,
        *arguments: str,
        terminal: bool = False,
        command: Sequence[str] = RUN,
    ) -> None:
        if terminal:
            self.fd, writer = pty.openpty()
        else:
            self.fd, writer = os.pipe()
        self.output = b""
        self.process = ForkedProcess(
            [*command, *arguments],
            preload=[] if command[: len(FORKED_WORKERS)] == FORKED_WORKERS else None,
            cwd=directory,
            env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(directory)},
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=writer,
            start_new_session=True,
        )
        os.close(writer)

    def read_until(self, done: Callable[[bytes], bool]) -> str:
        """Reads until the output is as wanted, or ends; fails at the limit."""
        deadline = time.monotonic() + LIMIT
        while not done(self.output):
            ready, _, _ = select.select([self.fd], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"not seen in time; output: {self.text}"
            try:
                data = os.read(self.fd, 65536)
            except OSError as error:  # how a terminal says that its other end is closed
                if error.errno != errno.EIO:
                    raise
                data = b""
            if not data:
                break
            self.output += data
        return self.text

    def wait_for(self, pattern: str, count: int = 1) -> str:
        """Reads until a pattern was seen so many times."""
        regex = re.compile(pattern.encode())
        text = self.read_until(lambda output: len(regex.findall(output)) >= count)
        assert len(regex.findall(self.output)) >= count, text
        return text

    def finish(self) -> tuple[int, list[str]]:
        """Reads to the end; returns the exit code and the lines."""
        self.read_until(lambda _: False)
        return self.process.wait(LIMIT), self.text.splitlines()

    @property
    def text(self) -> str:
        return self.output.decode()

    def pids(self, name: str = "pid") -> list[int]:
        """Returns the numbers that workers wrote as `pid=...`."""
        return [int(number) for number in re.findall(rf"{name}=(\d+)", self.text)]

    def close(self) -> None:
        sessions = [self.process.pid, *self.pids()]
        worker_process.kill_sessions(sessions, signal.SIGKILL)
        self.process.wait(LIMIT)
        os.close(self.fd)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Starts `telegrad run` with the text of a script; the marks in it are its arguments."""
    runs: list[Run] = []

    def start(script: str, n: int = 1, *arguments: str, terminal: bool = False) -> Run:
        (tmp_path / "script.py").write_text("import os, sys, signal\n" + script)
        options = ("--nproc-per-node", str(n), "script.py", *arguments)
        runs.append(Run(tmp_path, *options, terminal=terminal))
        return runs[-1]

    yield start
    for started in runs:
        started.close()


def wait_until_gone(pids: list[int]) -> None:
    """Waits for processes that are not children of this one."""
    assert pids
    for pid in pids:
        try:
            descriptor = open_process(pid)
        except ProcessLookupError:
            continue
        try:
            ready, _, _ = select.select([descriptor], [], [], LIMIT)
        finally:
            os.close(descriptor)
        assert ready, f"process {pid} is still there"


WAIT = "print(f'pid={os.getpid()} ready'); signal.pause()\n"


def test_environment(run: Callable[..., Run], tmp_path: Path) -> None:
    names = (
        "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TELEGRAD_JOB "
        "TELEGRAD_NAME TELEGRAD_TOKEN_FILE OMP_NUM_THREADS"
    )
    code, lines = run(
        f"print(*[os.environ[n] for n in '{names}'.split()], *sys.argv[1:])\n"
        "print(oct(os.stat(os.environ['TELEGRAD_TOKEN_FILE']).st_mode), __name__, __file__)\n",
        2,
        "--nproc-per-node",
        "x y",
    ).finish()
    assert code == 0, lines[-9:]
    share = max(1, cores() // 2)
    seen = {}
    for rank in range(2):
        first, second = [line for line in lines if line.startswith(f"[{rank}] ")]
        match = re.fullmatch(
            rf"\[{rank}\] {rank} {rank} 2 2 127\.0\.0\.1 (\d+) (script-[0-9a-f]+) worker{rank} "
            rf"(\S+/token) {share} --nproc-per-node x y",
            first,
        )
        assert match, first
        seen[match.groups()] = rank
        assert (
            second == f"[{rank}] 0o100600 __main__ {match[3].rpartition('/telegrad-')[0]}/script.py"
        )
        assert not Path(match[3]).exists()
    assert len(seen) == 1
    assert len(lines) == 4
    assert not list(tmp_path.glob("telegrad-*"))


def test_in_place_on_a_terminal(run: Callable[..., Run]) -> None:
    started = run("sys.stdout.write('10%\\r'); sys.stdout.write('20%\\rdone\\n')\n", terminal=True)
    code, lines = started.finish()
    assert code == 0, lines[-9:]
    assert started.text == "\r\x1b[K[0] 10%\r\x1b[K[0] 20%\r\x1b[K[0] done\r\n"


def test_lines_are_never_mixed(run: Callable[..., Run]) -> None:
    """The last line of each worker, which has no end, is shown as well."""
    code, lines = run(
        "r = os.environ['RANK']\n"
        "for i in range(2000): sys.stdout.write(r * 50); sys.stdout.write(r * 50 + '\\n')\n"
        "sys.stdout.write('z')\n",
        3,
    ).finish()
    assert code == 0, lines[-9:]
    whole = [f"[{r}] {str(r) * 100}" for r in range(3)]
    assert sorted(lines) == sorted([*whole * 2000, "[0] z", "[1] z", "[2] z"])


def test_exit_code_and_traceback_last(run: Callable[..., Run]) -> None:
    code, lines = run(
        "if os.environ['RANK'] == '1': raise ValueError('not today')\nprint('noise')\n",
        2,
    ).finish()
    assert code == 1
    # Only if rank 0 is still there: on a busy machine its start takes longer.
    lines = [line for line in lines if not line.endswith("the others get 5 s to end")]
    assert lines[-1] == "telegrad run: rank 1 failed with exit code 1"
    assert lines[-2] == "[1] ValueError: not today"
    began = len(lines) - 1 - lines[::-1].index("[1] Traceback (most recent call last):")
    assert all(line.startswith("[1] ") for line in lines[began:-1])


FAILS_AFTER_THE_OTHERS = (
    "import pathlib, time\n"
    "rank = os.environ['RANK']\n"
    "if rank == '1':\n"
    "    while not all(pathlib.Path(f'ready{r}').exists() for r in '02'): time.sleep(0.01)\n"
    "    sys.exit(7)\n"
    "print(f'pid={os.getpid()}')\n"
    "pathlib.Path(f'ready{rank}').touch()\n"
)


# Workers that do not end by themselves are ended after this instead of 5 s.
SHORT_GRACE = "from telegrad.launch import policy; policy.GRACE = 0.5\n"


def test_the_others_end_when_one_fails(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(f"import os, sys, signal\n{FAILS_AFTER_THE_OTHERS}{WAIT}")
    command = [sys.executable, "-c", SHORT_GRACE + UNLIMITED, "run"]
    with closing(Run(tmp_path, "--nproc-per-node", "3", "script.py", command=command)) as started:
        code, lines = started.finish()
        assert code == 7
        assert "telegrad run: rank 1 failed with exit code 7; the others get 5 s to end" in lines
        assert lines[-1] == "telegrad run: rank 1 failed with exit code 7"
        assert len(started.pids()) >= 2
        wait_until_gone(started.pids())


@pytest.mark.long
def test_nobody_waits_for_a_rank_that_has_ended_without_joining(run: Callable[..., Run]) -> None:
    code, lines = run(
        "if os.environ['RANK'] == '1':\n"
        "    raise SystemExit(0)\n"
        "from telegrad import rpc\n"
        "rpc.init_rpc(options=rpc.RpcOptions(init_timeout=float('inf')))\n",
        2,
    ).finish()
    assert code == 1
    assert any(
        "RendezvousError: rank 1 ended (exit code 0) without joining; have every rank" in line
        for line in lines
    ), lines


FAMILY = (
    "import subprocess\n"
    "child = subprocess.Popen(['sleep', '600'])\n"
    "print(f'pid={os.getpid()} pid={child.pid} ready')\n"
)


def test_workers_and_what_they_started_end_when_the_launcher_is_killed(
    run: Callable[..., Run], tmp_path: Path
) -> None:
    started = run(FAMILY + "print(os.environ['TELEGRAD_TOKEN_FILE'])\nsignal.pause()\n", 2)
    started.wait_for("token", 2)
    started.process.kill()
    started.read_until(lambda _: False)
    assert len(started.pids()) == 4
    wait_until_gone(started.pids())


def test_what_workers_started_ends_with_them(run: Callable[..., Run]) -> None:
    started = run(FAMILY, 2)
    code, lines = started.finish()
    assert code == 0, lines[-9:]
    assert len(started.pids()) == 4
    wait_until_gone(started.pids())


def test_module(run: Callable[..., Run], tmp_path: Path) -> None:
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("import sys\nprint(__name__, *sys.argv[1:])\n")
    started = Run(tmp_path, "--nproc-per-node", "1", "-m", "pkg", "-m", "x")
    code, lines = started.finish()
    started.close()
    assert code == 0, lines[-9:]
    assert lines == ["[0] __main__ -m x"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.py"], "there is no script 'nowhere.py' here; check its path"),
        (["--nproc-per-node", "0", "x.py"], r"--nproc-per-node must be at least 1 \(got 0\)"),
        (["--nproc-per-node", "two", "x.py"], "invalid int value: 'two'"),
        (["-m", "no_such_module_anywhere"], "there is no module 'no_such_module_anywhere'"),
        ([], "SCRIPT"),
        (["--unknown", "x.py"], "--unknown|SCRIPT|unrecognized"),
    ],
)
def test_bad_usage_is_one_line_and_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    (tmp_path / "x.py").touch()
    monkeypatch.chdir(tmp_path)
    assert main(["run", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(words, line)
    assert line.startswith("telegrad")


def test_output_that_nobody_reads_ends_the_run(run: Callable[..., Run], tmp_path: Path) -> None:
    started = run("print(f'pid={os.getpid()}')\nwhile True: print('y' * 1000)\n")
    started.wait_for("yyy")
    os.close(started.fd)
    started.fd = os.open(os.devnull, os.O_RDONLY)
    assert started.process.wait(LIMIT) == 128 + signal.SIGPIPE
    wait_until_gone(started.pids())


@pytest.mark.parametrize(
    ("end", "exit_code"),
    [(("SIGKILL",), -signal.SIGKILL), (("SIGTERM",), 143), (("SIGINT", "SIGINT"), 130)],
    ids=str,
)
@pytest.mark.few(1)
def test_a_launcher_that_ends_a_job_leaves_no_socket(end: tuple[str, ...], exit_code: int) -> None:
    """Workers that were killed cannot remove the directories of their sockets themselves.

    The first interrupt reaches each worker once, the second one kills them.
    """
    script = (
        "import os, signal\n"
        "from telegrad import rpc\n"
        "signal.signal(signal.SIGINT, lambda *_: os.write(1, b'caught\\n'))\n"
        "agent = rpc.init_rpc()\n"
        "print(f'pid={os.getpid()} ready')\n"
        "while True: signal.pause()\n"
    )
    # The path of a socket has at most 107 bytes, and pytest's own directories take most of them.
    with tempfile.TemporaryDirectory(prefix="tg") as name:
        directory = Path(name)
        (directory / "script.py").write_text(script)
        with closing(Run(directory, "--nproc-per-node", "2", "script.py")) as started:
            started.wait_for("ready", 2)
            sockets = [path for path in directory.rglob("*") if path.is_socket()]
            assert len(sockets) == 2, sockets
            for count, signal_name in enumerate(end):
                if count:
                    started.wait_for("caught", 2)
                started.process.send_signal(signal.Signals[signal_name])
            code, lines = started.finish()
            assert code == exit_code, lines
            assert sum("caught" in line for line in lines) == 2 * (len(end) - 1)
            wait_until_gone(started.pids())
            deadline = time.monotonic() + LIMIT
            while list(directory.glob("telegrad-*")) and time.monotonic() < deadline:
                select.select([], [], [], 0.01)  # the watcher outlives a launcher that was killed
            assert not list(directory.glob("telegrad-*"))


# -- the processes of a session, where the system has `/proc` and where it has none

# Leaves a process that has ended and that nobody waits for, beside two that run.
LEAVES_ONE = "sleep 0 & sleep 60 & echo; read line"


@pytest.mark.skipif(shutil.which("ps") is None, reason="ps is not installed here")
def test_ps_tells_the_same_as_proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with subprocess.Popen(
        ["sh", "-c", LEAVES_ONE],
        start_new_session=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as leader:
        try:
            assert leader.stdout is not None
            assert leader.stdout.readline() == b"\n"
            leaks.wait_until_gone(
                "end", lambda: [] if len(worker_process.session_members([leader.pid])) == 2 else [1]
            )
            told_by_proc = worker_process.session_members([leader.pid])
            monkeypatch.setattr(worker_process, "PROC", str(tmp_path))
            assert sorted(worker_process.session_members([leader.pid])) == sorted(told_by_proc)
        finally:
            assert leader.pid in worker_process.kill_sessions([leader.pid], signal.SIGKILL)
            leaks.wait_until_gone("members", lambda: worker_process.session_members([leader.pid]))
