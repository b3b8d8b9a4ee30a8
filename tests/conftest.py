"""Fixtures of the whole suite: leak checks, blocking calls on the loop, programs in processes."""

from __future__ import annotations

import gc
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import blockbuster.blockbuster as blockbuster
import hypothesis
import pytest

from telegrad import rpc
from telegrad.testing import Cluster, leaks
from telegrad.testing.fork_server import ForkedProcess

ROOT = Path(__file__).parent.parent
TOKEN = "a token that only the tests use"

# Deterministic: a failure is a failure on every machine, and no example is timed.
hypothesis.settings.register_profile(
    "telegrad",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
hypothesis.settings.load_profile("telegrad")

# A program of a test may take this long; what it printed is shown when it takes longer.
PROGRAM_SECONDS = 45.0


def pytest_configure() -> None:
    """Has Ctrl-C mean what it means in a terminal: a shell's `&` starts programs deaf to it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Takes what is collected out of the garbage collector's sight: it lives to the end.

    A full collection, of which many tests ask for several, would go through 14,000 tests each time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves all but a few cases of a test with the mark `few` to `make test-long`."""
    cases: dict[tuple[object, object], list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("few") is not None and item.get_closest_marker("long") is None:
            cases.setdefault((item.parent, getattr(item, "originalname", "")), []).append(item)
    for those in cases.values():
        mark = those[0].get_closest_marker("few")
        assert mark is not None
        step = max(1.0, len(those) / mark.args[0])
        kept = {int(k * step) for k in range(mark.args[0])}  # spread over them
        for k, item in enumerate(those):
            if k not in kept:
                item.add_marker("long")


@pytest.fixture(scope="module", autouse=True)
def _no_old_objects() -> None:
    """Likewise takes out what the tests of other modules have left to live on: reports, timers."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _uvloops_own_pipe() -> None:
    """Makes one loop of uvloop's, where that is installed: libuv keeps a pipe from its first loop on."""
    if find_spec("uvloop") is not None:
        import_module("uvloop").new_event_loop().close()


@pytest.fixture(autouse=True)
def _no_leaks() -> Iterator[None]:
    """Fails a test that leaves a thread or a child process behind."""
    with leaks.no_leaked_children(), leaks.no_leaked_threads():
        yield


@pytest.fixture
def no_leaked_descriptors() -> Iterator[None]:
    """Fails a test that leaves a file, pipe or socket open."""
    with leaks.no_leaked_descriptors():
        yield


# -- blocking calls on a loop of telegrad's ---------------------------------------------------


@pytest.fixture(scope="session")
def blocking_calls() -> Iterator[list[str]]:
    """Records blocking calls on the loop thread that owns the sockets.

    Short-held locks are part of the design and not looked at, nor is the user loop: what blocks
    there is the user's, and telegrad names it itself.
    """
    found: list[str] = []

    class RecordedError(blockbuster.BlockingError):
        def __init__(self, function: str) -> None:
            super().__init__(function)
            found.append(f"{function}\n{''.join(traceback.format_stack(limit=12))}")

    def on_loop_only(may_block: Callable[..., bool]) -> Callable[..., bool]:
        def predicate(*args: Any, **kwargs: Any) -> bool:
            name = threading.current_thread().name
            return name != "telegrad-loop" or may_block(*args, **kwargs)

        return predicate

    watch = blockbuster.BlockBuster("telegrad")
    for name in [name for name in watch.functions if name.startswith(("threading.", "os.stat"))]:
        del watch.functions[name]
    for function in watch.functions.values():
        function.can_block_predicate = on_loop_only(function.can_block_predicate)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blockbuster, "BlockingError", RecordedError)
        watch.activate()
        yield found
        watch.deactivate()


@pytest.fixture(autouse=True)
def _no_blocking_calls(blocking_calls: list[str]) -> Iterator[None]:
    """Fails a test during which the loop thread made a blocking call."""
    blocking_calls.clear()
    yield
    assert not blocking_calls, "blocking call on the loop: " + "\n".join(blocking_calls)


# -- programs in processes of their own -------------------------------------------------------


@dataclass
class Program:
    """A process that a test started, in a session of its own."""

    process: subprocess.Popen[str]
    path: Path
    limit: float

    @property
    def output(self) -> str:
        """What it wrote so far, both streams in order."""
        return self.path.read_text(errors="replace")

    def wait(self, *, code: int | None = 0) -> str:
        """Waits for its end within the limit and returns its output; checks the exit code."""
        try:
            found = self.process.wait(self.limit)
        except subprocess.TimeoutExpired:
            self.kill()
            pytest.fail(f"{self} ran longer than {self.limit:g} s; its output:\n{self.output}")
        if code is not None and found != code:
            pytest.fail(f"{self} ended with {found}, not {code}; its output:\n{self.output}")
        return self.output

    def wait_for(self, text: str) -> str:
        """Waits until its output holds a text."""
        try:
            leaks.wait_until_gone(
                "wait", lambda: [] if text in self.output else [text], within=self.limit
            )
        except leaks.LeakError:
            pytest.fail(f"{self} did not print {text!r}; its output:\n{self.output}")
        return self.output

    def kill(self) -> None:
        """Kills it and all processes of its session, and waits for it."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def __str__(self) -> str:
        return f"{self.process.args!r}"


def _environment_of_a_shell() -> dict[str, str]:
    """Returns this process' environment without what telegrad has set in it for gRPC."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return kept | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}


@dataclass
class Programs:
    """Starts processes and leaves none behind."""

    directory: Path
    started: list[Program] = field(default_factory=list)

    def start(
        self,
        command: Sequence[str | Path],
        *,
        env: dict[str, str] | None = None,
        limit: float = PROGRAM_SECONDS,
        pass_fds: Sequence[int] = (),
        executed: bool = False,
        preload: Sequence[str] | None = None,
    ) -> Program:
        """Starts a command in the repository's root; `python` and `telegrad` mean this one's.

        A Python program is forked from one that has imported telegrad, unless it has to be
        executed because the start of an interpreter is what the test is about. So are the workers
        of `telegrad run`, and the local workers of a program where `preload` says, maybe with an
        empty list, which modules they have imported.
        """
        words = [sys.executable if word == "python" else str(word) for word in command]
        if words[0] == "telegrad":
            words[:1] = [sys.executable, "-m", "telegrad" if executed else "tests.forked_launcher"]
            preload = preload or ()
        path = self.directory / f"output-{len(self.started)}.txt"
        start = subprocess.Popen if executed else partial(ForkedProcess, preload=preload)
        with path.open("w") as output:
            process = start(
                words,
                cwd=ROOT,
                env=_environment_of_a_shell() | (env or {}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
                pass_fds=pass_fds,
            )
        program = Program(process, path, limit)
        self.started.append(program)
        return program

    def run(self, command: Sequence[str | Path], *, code: int = 0, **options: Any) -> str:
        """Runs a command to its end and returns its output."""
        return self.start(command, **options).wait(code=code)

    def script(self, text: str, name: str = "script.py") -> Path:
        """Writes a program to a file of its own."""
        path = self.directory / name
        path.write_text(text)
        return path

    def ranks(
        self,
        script: Path,
        n: int,
        *,
        env: dict[str, str] | None = None,
        arguments: Sequence[str] = (),
        **options: Any,
    ) -> list[Program]:
        """Starts a script n times with what `env://` reads; no launcher is involved."""
        job = {
            "WORLD_SIZE": str(n),
            "LOCAL_WORLD_SIZE": str(n),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(unused_port()),
            "TELEGRAD_TOKEN": TOKEN,
            **(env or {}),
        }
        return [
            self.start(
                ["python", script, *arguments],
                env={**job, "RANK": str(r), "LOCAL_RANK": str(r)},
                **options,
            )
            for r in range(n)
        ]

    def close(self) -> None:
        """Kills whatever still runs."""
        with ExitStack() as stack:
            for program in self.started:
                stack.callback(program.kill)


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    """Starts processes within a hard limit of wall-clock time; none outlives the test."""
    started = Programs(tmp_path)
    try:
        yield started
    finally:
        started.close()


@pytest.fixture
def forked_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forks the Python programs that the library starts in this process, as local workers are."""
    monkeypatch.setattr(subprocess, "Popen", ForkedProcess)


LEAST_PORT, MOST_PORTS = 10_000, 20_000
MOST_PROBES = 1000


def unused_port() -> int:
    """Returns a port that nobody listens on, and that the kernel gives nobody who asks for any.

    Until a program of the test binds it, others dial and listen a thousand times.
    """
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = range(LEAST_PORT, low)[:MOST_PORTS] or (0,)  # 0: the kernel gives all, and chooses
    for _ in range(MOST_PROBES):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", secrets.choice(ports)))
            port: int = probe.getsockname()[1]
            return port
    raise OSError(f"{MOST_PROBES} ports that were tried are all in use")


@pytest.fixture
def port() -> int:
    """A port that nobody listens on."""
    return unused_port()


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Three workers in this process, or as many as a test's module says by CLUSTER_SIZE."""
    with Cluster(getattr(request.module, "CLUSTER_SIZE", 3)) as cluster:
        yield cluster


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No job around this process, and none left behind."""
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TELEGRAD_JOB"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TELEGRAD_TOKEN", TOKEN)
    yield
    rpc.shutdown(graceful=False)
