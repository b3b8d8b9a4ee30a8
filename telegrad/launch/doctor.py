"""`telegrad doctor`: looks at this host, then at every pair of workers of a small job on all hosts."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import signal
import socket
import sys
import tempfile
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from telegrad.errors import RendezvousTimeoutError, TelegradError
from telegrad.launch.doctor_host import Finding, HostFacts, look_at_host
from telegrad.launch.doctor_reach import explain, look_at_way
from telegrad.launch.log_relay import LogRelay
from telegrad.launch.run import RunOptions, refusals, run

__all__ = ["add_doctor", "doctor", "explained", "problem_with"]

WORKER: Final = "telegrad.rpc.doctor_worker"
SECONDS: Final = 60.0
WRONG: Final = 1
HIGHEST_PORT: Final = 65535
WIDTH: Final = 80
EXAMPLE = """\
example, on one host:
  telegrad doctor

on two hosts, as they would run a job (docs/doctor.md):
  telegrad doctor --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --master-port 29500
  telegrad doctor --nnodes 2 --node-rank 1 --master-addr 10.0.0.1 --master-port 29500

Exits with 0 where nothing is wrong, 1 where something is, 2 for a command that cannot be.
"""


def add_doctor(
    commands: argparse._SubParsersAction[Any],
    add_nodes: Callable[[argparse.ArgumentParser], None],
) -> None:
    """Adds the command to a parser.

    Args:
        commands: Of `telegrad`.
        add_nodes: Adds the options by which hosts find each other, those of `telegrad run`.
    """
    parser = commands.add_parser(
        "doctor",
        help="test every pair of workers, on this host or between several",
        description="Tests every pair of workers, says what is wrong and how to mend it.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--nproc-per-node",
        type=int,
        metavar="K",
        help="how many workers on this host (default: 2 on one host, 1 on each of several)",
    )
    add_nodes(parser)
    parser.add_argument(
        "--timeout",
        type=float,
        default=SECONDS,
        metavar="S",
        help="seconds for all hosts to come, and again for the pairs (default: 60)",
    )
    parser.add_argument(
        "--port", default="0", metavar="FIRST-LAST", help="ports for the workers here to listen on"
    )
    parser.add_argument(
        "--no-listen", action="store_true", help="the workers here only connect out (listen=False)"
    )
    parser.add_argument("--json", metavar="FILE", help="write the report there as well")


def problem_with(options: argparse.Namespace) -> str | None:
    """Returns what is wrong with the options that no other command has, in words."""
    if not 0 < options.timeout < math.inf:
        return f"--timeout must be a number of seconds above 0 (got {options.timeout:g})"
    first, dash, last = options.port.partition("-")
    numbers = [first, last] if dash else [first]
    if not all(each.isdecimal() and int(each) <= HIGHEST_PORT for each in numbers):
        return f"--port must be a port or a range such as 29501-29599 (got {options.port!r})"
    if dash and not 1 <= int(first) <= int(last):
        return f"--port must begin above 0 and not end before that (got {options.port!r})"
    if options.no_listen and options.port != "0":
        return "--no-listen opens no port, so that --port has no meaning; give one or the other"
    if options.json is not None and not os.access(Path(options.json).absolute().parent, os.W_OK):
        return f"--json cannot be written: no directory for {options.json!r} that you may write to"
    return None


def doctor(options: argparse.Namespace) -> int:
    """Runs the command, whose options were checked; returns its exit code."""
    try:
        return _doctor(options)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _doctor(options: argparse.Namespace) -> int:
    several = options.nnodes > 1
    node = options.node_rank or 0
    run_options = RunOptions(
        command=(),
        script="doctor",
        workers=options.nproc_per_node or (1 if several else 2),
        nodes=options.nnodes,
        node=node,
        host=options.master_addr or "127.0.0.1",
        port=(options.master_port or 0) if several else 0,
        bind=options.bind if several else None,
        gather=options.timeout,
        verb="doctor",
    )
    host = look_at_host(
        os.environ, master=run_options.host if several else None, name=run_options.name
    )
    _say(_host_text(host))
    if host.problems and several:
        _say(_findings("problem", host.problems, "to mend it"))
        _write(options.json, host, None, host.problems)
        return WRONG
    with tempfile.TemporaryDirectory(prefix="telegrad-doctor-") as directory:
        return _examine(options, run_options, host, Path(directory) / "report.json")


def _examine(
    options: argparse.Namespace, run_options: RunOptions, host: HostFacts, file: Path
) -> int:
    """Runs the workers, and prints what they have found."""
    flags = ["--timeout", str(options.timeout), "--port", options.port]
    if options.no_listen:
        flags.append("--no-listen")
    command = [sys.executable, "-u", "-m", WORKER, str(file), *flags]
    failure: list[Finding] = []

    def failed(relay: LogRelay, error: OSError | TelegradError) -> None:
        relay.clear()
        failure.extend(explained(run_options, error, refused.found()))

    with refusals() as refused:
        code = run(dataclasses.replace(run_options, command=command), failed)
    if code > 128:  # a signal: who sent it knows
        return code
    report = _read(file)
    problems = list(dict.fromkeys([*host.problems, *failure]))  # both may have met the same
    if report is None and not problems:
        problems.append(
            Finding(
                "the workers ended without a report; what they wrote stands above",
                "look at the first line of the worker that failed; with --timeout there is more time",
            )
        )
    if report is not None:
        _say(report["text"])
    notes = host.notes
    if notes:
        _say(_findings("note on this host", notes, "if it matters"))
    if problems:
        _say(_findings("problem on this host", problems, "to mend it"))
    _write(options.json, host, report, problems)
    wrong = bool(problems) or report is None or not report["ok"] or code != 0
    return WRONG if wrong else 0


def explained(
    options: RunOptions, error: OSError | TelegradError, refused: Sequence[str]
) -> list[Finding]:
    """Says why the hosts did not come together.

    Args:
        options: What the command line says.
        error: With which this launcher gave up.
        refused: Who was turned away here, in words.
    """
    if options.node != 0 and isinstance(error, RendezvousTimeoutError) and error.missing:
        return [
            Finding(
                f"this host reached host 0, and others did not come: {', '.join(error.missing)}",
                "look at the doctor on those: it says there why",
            )
        ]
    if options.node != 0:
        return [explain(error, look_at_way(options.host, options.port))]
    if isinstance(error, RendezvousTimeoutError) and error.missing:
        heard = (
            f"somebody came and was turned away: {'; '.join(refused)}"
            if refused
            else f"nobody else has come through at port {options.port} (of whom TLS turns away "
            "nothing is heard here)"
        )
        token = (
            "set TELEGRAD_TOKEN, or the file TELEGRAD_TOKEN_FILE, to the same value on all hosts; "
            if any("another token" in each or "no token" in each for each in refused)
            else ""
        )
        return [
            Finding(
                f"missing after {options.gather:g} s: {', '.join(error.missing)}; {heard}",
                f"{token}run on each of them the same command with its own --node-rank; where it runs, it "
                f"says why it does not come in; what has to be open here: sudo ufw allow "
                f"{options.port}/tcp",
            )
        ]
    words, _, remedy = str(error).partition("; ")
    if "--bind" not in remedy and "bind=" in remedy:
        remedy = remedy.replace("RpcOptions(bind='0.0.0.0')", "--bind 0.0.0.0")
    return [Finding(words, remedy or "see docs/network.md")]


def _read(file: Path) -> dict[str, Any] | None:
    try:
        report: dict[str, Any] = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    return report


def _write(
    path: str | None, host: HostFacts, report: dict[str, Any] | None, problems: Sequence[Finding]
) -> None:
    """Writes all of it for programs."""
    if path is None:
        return
    plain = {key: value for key, value in (report or {}).items() if key != "text"}
    found = [{"words": each.words, "remedy": each.remedy} for each in problems]
    ok = bool(report and report["ok"] and not found)
    whole = {"ok": ok, "host": socket.gethostname(), "here": host.to_dict(), "failures": found}
    Path(path).write_text(json.dumps({**whole, "report": plain or None}, indent=2) + "\n")


def _host_text(host: HostFacts) -> str:
    return "\n".join("\n".join(textwrap.wrap(line, WIDTH, **_WHOLE)) for line in host.lines)


def _findings(what: str, found: Sequence[Finding], lead: str) -> str:
    lines = [f"{len(found)} {what if len(found) == 1 else what.replace(' ', 's ', 1)}"]
    for i, each in enumerate(found, 1):
        lines += textwrap.wrap(f"  {i}. {each.words}", WIDTH, **_WHOLE)
        lines += textwrap.wrap(f"     {lead}: {each.remedy}", WIDTH, **_WHOLE)
    return "\n".join(lines)


_WHOLE: Final[dict[str, Any]] = {
    "subsequent_indent": "     ",
    "break_long_words": False,
    "break_on_hyphens": False,
}


def _say(text: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(f"{text}\n\n")
        sys.stdout.flush()
