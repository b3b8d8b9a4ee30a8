"""The command `telegrad`."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NoReturn, final

from telegrad.launch.certs import add_certs, certs
from telegrad.launch.run import RunOptions, limits_of, parse_limit, run
from telegrad.launch.tuning import add_tune, command_of, problem_with_tune, tune
from telegrad.transport import HIGHEST_PORT, own_loopback

BAD_USAGE = 2
WORKERS = "1; for doctor and tune on one host: 2"
EXAMPLE = """\
example:
  telegrad run --nproc-per-node 3 train.py --epochs 10

on two hosts, with one token in ~/.config/telegrad/token of both:
  telegrad run --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --master-port 29500 train.py
  telegrad run --nnodes 2 --node-rank 1 --master-addr 10.0.0.1 --master-port 29500 train.py

Each worker finds RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its environment, so that
rpc.init_rpc() needs no arguments. Ctrl-C interrupts the workers; a second one kills them.
"""


@final
class _Parser(argparse.ArgumentParser):
    """A parser that reports errors in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_USAGE, f"{self.prog}: {message}; see {self.prog} --help\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code.

    Args:
        arguments: The arguments after `telegrad`; those of this process by default.
    """
    parser = _build_parser()
    try:
        options = parser.parse_args(arguments)
        if options.command is None:
            parser.error("a command is missing, write: telegrad run SCRIPT")
        if options.command == "certs":
            return certs(options)
        problem = _PROBLEMS[options.command](options)
        if problem is not None:
            parser.exit(BAD_USAGE, f"telegrad {options.command}: {problem}\n")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else BAD_USAGE
    if options.command == "doctor":
        return int(_doctor().doctor(options, _options(options, "doctor", ())))
    if options.command == "tune":
        return tune(options, _options(options, "tune", command_of(options)))
    what = ["-m", options.script] if options.module else [options.script]
    command = [sys.executable, "-u", *what, *options.arguments]
    return run(_options(options, options.script, command))


def _doctor() -> ModuleType:
    """Returns the module of `telegrad doctor`, which stands above the launcher."""
    from telegrad.doctor import command  # noqa: PLC0415 - a door

    return command


def _build_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="telegrad", description="RPC and gradients across processes.")
    parser.add_argument(
        "--version", action="version", version=f"telegrad {importlib.metadata.version('telegrad')}"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    run_parser = commands.add_parser(
        "run",
        help="run a script in several workers, on this host or on several",
        description="Runs a script in several workers, as one job.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_nodes(run_parser)
    run_parser.set_defaults(nproc_per_node=1)
    run_parser.add_argument(
        "--limit",
        action="append",
        default=[],
        dest="limits",
        type=parse_limit,
        metavar="NAME=NUMBER",
        help="a limit of the coordinator, as in rpc.Limits: document_bytes=1000000000",
    )
    run_parser.add_argument(
        "-m", dest="module", action="store_true", help="SCRIPT is a module, as with python -m"
    )
    run_parser.add_argument("script", metavar="SCRIPT", help="the program that each worker runs")
    run_parser.add_argument(
        "arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="the arguments for SCRIPT"
    )
    _doctor().add_doctor(commands, _add_nodes)
    add_tune(commands, _add_nodes)
    add_certs(commands)
    return parser


def _add_nodes(parser: argparse.ArgumentParser) -> None:
    """Adds the number of workers, and the options by which hosts find each other."""
    for name, kind, metavar, words in (
        ("--nproc-per-node", int, "N", f"the number of workers on this host (default: {WORKERS})"),
        ("--nnodes", int, "N", "the number of hosts; run this on each of them (default: 1)"),
        ("--node-rank", int, "R", "the number of this host, from 0"),
        ("--master-addr", str, "ADDR", "the address at which other hosts reach host 0"),
        ("--master-port", int, "PORT", "a free port of host 0"),
        ("--bind", str, "ADDR", "on host 0: the address to listen on, if not --master-addr"),
    ):
        parser.add_argument(name, type=kind, metavar=metavar, help=words)


def _problem_with(options: argparse.Namespace) -> str | None:
    """Returns the problem with the options of `run` in words; None if there is none."""
    problem = _problem_with_nodes(options)
    if problem is not None:
        return problem
    if options.module:
        top = options.script.partition(".")[0]
        if not _module_exists(top):
            return f"there is no module {options.script!r} on the path; check its name"
        return None
    if not Path(options.script).exists():
        return f"there is no script {options.script!r} here; check its path (a module needs -m)"
    return None


def _problem_with_doctor(options: argparse.Namespace) -> str | None:
    """Returns the problem with the options of `doctor` in words; None if there is none."""
    return _problem_with_nodes(options) or _problem_with_file("--json", options.json)


def _problem_with_tune(options: argparse.Namespace) -> str | None:
    """Returns the problem with the options of `tune` in words; None if there is none."""
    problem = _problem_with_nodes(options) or problem_with_tune(options)
    return problem or _problem_with_file("--output", options.output)


def _problem_with_file(flag: str, file: str | None) -> str | None:
    if file is not None and not os.access(Path(file).absolute().parent, os.W_OK):
        return f"{flag} cannot be written: no directory for {file!r} that you may write to"
    return None


def _problem_with_nodes(options: argparse.Namespace) -> str | None:
    nodes = options.nnodes = 1 if options.nnodes is None else options.nnodes
    if nodes < 1:
        return f"--nnodes must be at least 1 (got {nodes})"
    if options.nproc_per_node is None:  # of `doctor` and `tune`, which need two workers
        options.nproc_per_node = 2 if nodes == 1 else 1
    if options.nproc_per_node < 1:
        return f"--nproc-per-node must be at least 1 (got {options.nproc_per_node})"
    needed = ("node_rank", "master_addr", "master_port")
    missing = [name for name in needed if getattr(options, name) is None]
    if nodes > 1 and missing:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
        return f"--nnodes {nodes} needs {flags} as well; the others must say the same host and port"
    if not 0 <= (options.node_rank or 0) < nodes:
        return f"--node-rank must be from 0 to {nodes - 1} (got {options.node_rank})"
    if options.master_port is not None and not 1 <= options.master_port <= HIGHEST_PORT:
        return f"--master-port must be from 1 to {HIGHEST_PORT} (got {options.master_port})"
    return None


_PROBLEMS = {"run": _problem_with, "doctor": _problem_with_doctor, "tune": _problem_with_tune}


def _module_exists(name: str) -> bool:
    """Returns True if `python -m` would find a top-level module; imports nothing."""
    sys.path.insert(0, os.getcwd())
    try:
        return bool(name) and importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
    finally:
        sys.path.pop(0)


def _options(found: argparse.Namespace, script: str, command: Sequence[str]) -> RunOptions:
    return RunOptions(
        command=command,
        script=script,
        workers=found.nproc_per_node,
        nodes=found.nnodes,
        node=found.node_rank or 0,
        host=found.master_addr or own_loopback(),
        port=found.master_port or 0,
        bind=found.bind,
        limits=limits_of(getattr(found, "limits", [])),
        verb=found.command,
    )


if __name__ == "__main__":
    sys.exit(main())
