"""The command `telegrad`."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import re
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from typing import NoReturn, TextIO, final

from telegrad.errors import TelegradError
from telegrad.launch.env import JobEnvironment, available_cores, thread_limits
from telegrad.launch.log_relay import LogRelay, Screen
from telegrad.launch.supervisor import Supervisor, Watcher
from telegrad.rendezvous import Coordinator
from telegrad.transport import GrpcTransport, write_token_file

__all__ = ["main"]

LOOPBACK = "127.0.0.1"
BAD_USAGE = 2
COULD_NOT_START = 1
EXAMPLE = """\
example:
  telegrad run --nproc-per-node 3 train.py --epochs 10

Each worker finds RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its environment, so that
rpc.init_rpc() needs no arguments. Ctrl-C interrupts the workers; a second one kills them.
"""


@final
class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_USAGE, f"{self.prog}: {message}; see {self.prog} --help\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code.

    Args:
        arguments: What follows `telegrad`; of this process by default.
    """
    parser = _build_parser()
    try:
        options = parser.parse_args(arguments)
        if options.command is None:
            parser.error("a command is missing, write: telegrad run SCRIPT")
        problem = _problem_with(options)
        if problem is not None:
            parser.exit(BAD_USAGE, f"telegrad run: {problem}\n")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else BAD_USAGE
    return _run(options)


def _build_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="telegrad", description="RPC and gradients across processes.")
    parser.add_argument(
        "--version", action="version", version=f"telegrad {importlib.metadata.version('telegrad')}"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    run = commands.add_parser(
        "run",
        help="run a script in several workers on this host",
        description="Runs a script in several workers on this host, as one job.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument(
        "--nproc-per-node", type=int, default=1, metavar="N", help="how many workers (default: 1)"
    )
    run.add_argument(
        "-m", dest="module", action="store_true", help="SCRIPT is a module, as with python -m"
    )
    run.add_argument("script", metavar="SCRIPT", help="the program that each worker runs")
    run.add_argument(
        "arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="its arguments, as they are"
    )
    return parser


def _problem_with(options: argparse.Namespace) -> str | None:
    """Returns what is wrong with the options of `run`, in words."""
    if options.nproc_per_node < 1:
        return f"--nproc-per-node must be at least 1 (got {options.nproc_per_node})"
    if options.module:
        top = options.script.partition(".")[0]
        if not _module_exists(top):
            return f"there is no module {options.script!r} on the path; check its name"
        return None
    if not Path(options.script).exists():
        return f"there is no script {options.script!r} here; check its path (a module needs -m)"
    return None


def _module_exists(name: str) -> bool:
    """Tells whether `python -m` would find a top-level module; imports nothing."""
    sys.path.insert(0, os.getcwd())
    try:
        return bool(name) and importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
    finally:
        sys.path.pop(0)


def _run(options: argparse.Namespace) -> int:
    relay = LogRelay(_screen(sys.stdout), _screen(sys.stderr))
    job = _job_name(options.script)
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    directory = tempfile.mkdtemp(prefix="telegrad-")  # 0700
    watcher = Watcher(directory)
    try:
        token_file = os.path.join(directory, "token")
        token = write_token_file(token_file)
        coordinator = Coordinator(
            [GrpcTransport(LOOPBACK)], job=job, token=token, world_size=options.nproc_per_node
        )
        try:
            port = int(coordinator.start()[0].rpartition(":")[2])
            environment = _environment(options.nproc_per_node, port, job, token_file)
            _say_limits(relay, environment)
            return Supervisor(_command(options), environment, relay, watcher).run()
        finally:
            coordinator.close()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (OSError, TelegradError) as error:
        relay.say(f"could not start: {error}")
        return COULD_NOT_START
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        watcher.dismiss()
        signal.signal(signal.SIGINT, previous)


def _screen(stream: TextIO) -> Screen:
    terminal = stream.isatty()
    columns = shutil.get_terminal_size().columns if terminal else 80
    return Screen(FileIO(stream.fileno(), "w", closefd=False), terminal=terminal, columns=columns)


def _job_name(script: str) -> str:
    """Makes a name that says what runs and that no other run has."""
    stem = re.sub(r"[^A-Za-z0-9._-]", "-", Path(script).stem)[:40] or "job"
    return f"{stem}-{secrets.token_hex(4)}"


def _command(options: argparse.Namespace) -> list[str]:
    what = ["-m", options.script] if options.module else [options.script]
    return [sys.executable, "-u", *what, *options.arguments]


def _environment(workers: int, port: int, job: str, token_file: str) -> JobEnvironment:
    return JobEnvironment(
        base=os.environ,
        workers=workers,
        host=LOOPBACK,
        port=port,
        job=job,
        token_file=token_file,
        limits=thread_limits(os.environ, workers, available_cores()),
    )


def _say_limits(relay: LogRelay, environment: JobEnvironment) -> None:
    if environment.limits:
        share = next(iter(environment.limits.values()))
        relay.say(
            f"{', '.join(environment.limits)} = {share} for each worker (workers: "
            f"{environment.workers}, cores: {available_cores()}); set them to choose otherwise"
        )


if __name__ == "__main__":
    sys.exit(main())
