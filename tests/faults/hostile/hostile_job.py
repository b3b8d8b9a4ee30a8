"""A job of real processes, in network namespaces or not, of which one is killed, stopped or cut off.

with HostileJob(programs, ROLES, lost_after=2.0) as job:
    job.run(get_ready)                       # on each living worker, at once
    job.strike("stopped", "callee")
    job.run(failures, "callee")              # on those that are left
    job.recover()
"""

from __future__ import annotations

import json
import multiprocessing
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Literal, TypeVar

from telegrad.testing.channel import Channel
from telegrad.wire import name_of
from tests.conftest import Program, Programs, unused_port
from tests.hosts.namespaces import Hosts

__all__ = ["LOST_AFTER", "Fault", "HostileJob"]

T = TypeVar("T")
Fault = Literal["killed", "stopped", "cut"]
# For `RpcOptions`, by the fault. Who is stopped or cut off falls silent; who is killed is missed at
# once, long before this.
LOST_AFTER: dict[Fault, float] = {"killed": 40.0, "stopped": 2.0, "cut": 2.0}

ANSWER = 50.0  # seconds for one answer of a worker; it has limits of its own, which are shorter
PORT = 29500  # of the coordinator in a namespace, where nobody else listens


class _Worker:
    """One process, and the pipe through which it is told what to do."""

    def __init__(self, program: Program, pipe: Connection) -> None:
        self.program = program
        self.pipe = pipe
        self.channel = Channel(pipe)

    def ask(self, verb: str, name: str, args: Sequence[Any] = ()) -> None:
        self.channel.send([0, verb, name], list(args))

    def answer(self) -> Any:
        assert self.pipe.poll(ANSWER), f"{self.program} does not answer:\n{self.program.output}"
        try:
            _, read = self.channel.receive()
        except EOFError:
            raise AssertionError(f"{self.program} ended:\n{self.program.output}") from None
        error, value = read()
        if error is not None:
            raise error
        return value

    def refusal(self) -> BaseException:
        """Returns what it was told to do has raised."""
        try:
            value = self.answer()
        except Exception as error:
            return error
        raise AssertionError(f"{value!r} and no error:\n{self.program.output}")


class HostileJob:
    """Some workers in processes of their own; the first one hosts the coordinator.

    Args:
        programs: Starts them.
        names: Of the workers, by rank.
        lost_after: For `RpcOptions`.
        bridge: Where each has a network namespace; None for loopback.
        places: The host of each worker there; None for one host each.
        join: Whether they join before this returns.
        options: More for `RpcOptions`, by worker. Without it those that have a bridge are told their
            address and do without a token; with it all that are not insecure have one, and choose
            their addresses.
        host: Where they find the coordinator; None for the first one's address.
        port: Its port there; None for one that is free.
    """

    def __init__(
        self,
        programs: Programs,
        names: Sequence[str],
        *,
        lost_after: float,
        bridge: Hosts | None = None,
        places: Sequence[int] | None = None,
        join: bool = True,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        host: str | None = None,
        port: int | None = None,
    ) -> None:
        self.names = list(names)
        self.living = list(names)
        self._bridge = bridge
        self._places = dict(zip(names, places or range(len(names)), strict=True))
        self._programs = programs
        self._struck: tuple[Fault, str] | None = None
        self._replaced: list[_Worker] = []
        self._options = {"lost_after": lost_after, "num_threads": 64}
        self._more = options
        self._host = host
        self._port = port or (PORT if bridge else unused_port())
        self._workers = {name: self._start(name) for name in names}
        if join:
            self._ask_all(self.names, "join", "")

    def run(self, func: Callable[..., T], *args: Any, on: Sequence[str] = ()) -> dict[str, T]:
        """Runs a function on workers, all at once; on every living one where none is named.

        Its module is imported on each of them before it runs on one.

        Raises:
            AssertionError: One does not answer, or has ended.
            Exception: What the function raised on the first of them that failed.
        """
        chosen, name = list(on) or self.living, name_of(func)
        self._ask_all(chosen, "import", name)
        return self._ask_all(chosen, "call", name, args)

    def strike(self, fault: Fault, victim: str) -> None:
        """Kills a worker, stops it, or cuts it off from all others."""
        self._struck = (fault, victim)
        self.living.remove(victim)
        worker = self._workers[victim]
        if fault == "killed":
            worker.program.process.kill()
            worker.program.process.wait()
        elif fault == "stopped":
            worker.program.process.send_signal(signal.SIGSTOP)
        else:
            assert self._bridge is not None, "a cut needs network namespaces"
            self._bridge.cut(self._places[victim])

    def recover(self) -> None:
        """Wakes up who was stopped, or heals the cut."""
        assert self._struck is not None
        (fault, victim), self._struck = self._struck, None
        if fault == "stopped":
            self._workers[victim].program.process.send_signal(signal.SIGCONT)
        elif fault == "cut":
            assert self._bridge is not None
            self._bridge.heal(self._places[victim])

    def join(self, names: Sequence[str]) -> None:
        """Lets some call `init_rpc`; returns when it has returned on each."""
        self._ask_all(names, "join", "")

    def begin(self, verb: str, names: Sequence[str]) -> None:
        """Tells some to do something; `end` waits until they have."""
        for name in names:
            self._workers[name].ask(verb, "")

    def end(self, names: Sequence[str]) -> None:
        """Waits for what `begin` has begun.

        Raises:
            Exception: What one of them raised.
        """
        for name in names:
            self._workers[name].answer()

    def wait_for(self, name: str, words: str) -> None:
        """Waits until a worker has written something."""
        self._workers[name].program.wait_for(words)

    def start(self, name: str, func: Callable[..., object], *args: Any) -> None:
        """Tells one worker to run a function whose module it knows; `answer` waits for its end."""
        self._workers[name].ask("call", name_of(func), args)

    def answer(self, name: str) -> Any:
        """Returns what the function has returned that `start` has started.

        Raises:
            AssertionError: The worker does not answer, or has ended.
            Exception: What the function raised.
        """
        return self._workers[name].answer()

    def signal(self, name: str, number: int) -> None:
        """Sends a signal to a worker's process."""
        self._workers[name].program.process.send_signal(number)

    def wait_for_exit(self, name: str, seconds: float) -> bool:
        """Waits until a worker's process has ended; returns False if it takes longer."""
        try:
            self._workers[name].program.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def refusal(self, name: str) -> BaseException:
        """Returns what a worker has raised in what `begin` has begun."""
        return self._workers[name].refusal()

    def replace(self, name: str) -> None:
        """Starts another process in the place of one that was struck."""
        self._replaced.append(self._workers[name])
        self._workers[name] = self._start(name)
        self.living.append(name)
        self.living.sort(key=self.names.index)

    def output(self, name: str) -> str:
        """Returns what a worker has written."""
        return self._workers[name].program.output

    def __enter__(self) -> HostileJob:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self._show_threads()
            for name in self.names:
                error.add_note(f"-- {name} wrote:\n{self.output(name)}")
        for worker in [*self._workers.values(), *self._replaced]:
            worker.program.kill()
            worker.channel.close()

    def _show_threads(self) -> None:
        """Has every living worker write down where its threads are."""
        for name, worker in self._workers.items():
            program = worker.program
            if program.process.poll() is None and self._struck != ("stopped", name):
                program.process.send_signal(signal.SIGUSR1)
                program.wait_for("most recent call first")

    def _start(self, name: str) -> _Worker:
        rank = self.names.index(name)
        options: dict[str, Any] = dict(self._options)
        host = "127.0.0.1"
        python = [sys.executable]
        if self._bridge is not None:
            host = self._bridge.address(self._places[self.names[0]])
            python = self._bridge.python(self._places[name])
        if self._more is not None:
            options.update(self._more.get(name, {}))
        elif self._bridge is not None:
            options.update(bind=self._bridge.address(self._places[name]), insecure=True)
        env = {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(self.names)),
            "MASTER_ADDR": self._host or host,
            "MASTER_PORT": str(self._port),
            "TELEGRAD_NAME": name,
        }
        if not options.get("insecure"):
            env["TELEGRAD_TOKEN"] = "a token that only the tests use"
        here, there = multiprocessing.Pipe()
        descriptor = there.fileno()
        program = self._programs.start(
            [*python, "-m", "tests.faults.programs.hostile", str(descriptor), json.dumps(options)],
            env=env,
            pass_fds=[descriptor],
        )
        there.close()
        return _Worker(program, here)

    def _ask_all(
        self, names: Sequence[str], verb: str, name: str, args: Sequence[Any] = ()
    ) -> dict[str, Any]:
        for each in names:
            self._workers[each].ask(verb, name, args)
        found: dict[str, Any] = {}
        errors: list[BaseException] = []
        for each in names:
            try:
                found[each] = self._workers[each].answer()
            except BaseException as error:
                error.add_note(f"raised on {each!r}")
                errors.append(error)
        if errors:
            raise errors[0]
        return found
