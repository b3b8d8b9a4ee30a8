"""`telegrad doctor`: examines this host, then every pair of workers of a small job on all hosts."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import errno
import importlib.util
import json
import math
import os
import signal
import socket
import stat
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from telegrad.doctor.probe import versions
from telegrad.doctor.report import Finding, findings, wrapped
from telegrad.errors import (
    AuthenticationError,
    RendezvousError,
    RendezvousTimeoutError,
    TelegradError,
)
from telegrad.launch.seams import LogRelay, RunOptions, available_cores, refusals, run
from telegrad.transport import (
    address_of,
    find_tls,
    find_token,
    interfaces,
    is_loopback_address,
    read_token_file,
    route_to,
    token_path,
)

__all__ = [
    "HostFacts",
    "PlainDial",
    "add_doctor",
    "doctor",
    "explain",
    "explained",
    "look_at_host",
    "look_at_way",
    "problem_with",
]


# -- facts about this host: versions, addresses, token, certificates -----------------------------

PACKAGES: Final = ("Python", "telegrad", "numpy", "grpcio")
TLS_ADVICE: Final = "run: pip install cryptography"
SHOWN: Final = ("TELEGRAD_", "GRPC_")  # variables that change what workers do
SECRET: Final = "TELEGRAD_TOKEN"
OWN: Final = ("GRPC_ENABLE_FORK_SUPPORT", "GRPC_VERBOSITY")  # telegrad sets these itself


@final
@dataclass(frozen=True, slots=True)
class HostFacts:
    """The facts about a host.

    Attributes:
        lines: The facts in words.
        problems: The present problems.
        notes: Possible problems.
    """

    lines: tuple[str, ...]
    problems: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()


def look_at_host(environ: Mapping[str, str], *, master: str | None, name: str) -> HostFacts:
    """Returns the facts about this host.

    Args:
        environ: `os.environ`, or a test's substitute.
        master: The address of host 0, in a job of several hosts; then a token is made if there is
            none, and encryption is needed. None in a job of one host.
        name: The name that a launcher's certificate must have here, if there are certificates.
    """
    several = master is not None
    problems: list[Finding] = []
    notes: list[Finding] = []
    token = _token(environ, problems, several=several)
    tls = _tls(environ, problems, notes, several=several, name=name)
    if master in (None, socket.gethostname()):
        _check_own_name(notes)
    known = versions()
    told = [f"{name} {known[name.lower()]}" for name in PACKAGES if name.lower() in known]
    found = ", ".join(map(str, interfaces())) or "none but loopback"
    lines = [
        f"host {socket.gethostname()}: {', '.join(told)}; cores: {available_cores()}",
        f"addresses: {found}",
        f"token: {token}",
        f"encryption: {tls}",
    ]
    shown = [
        f"{key}={environ[key]}"
        for key in sorted(environ)
        if key.startswith(SHOWN) and key != SECRET and key not in OWN
    ]
    if shown:
        lines.append(f"environment: {', '.join(shown)}")
    return HostFacts(tuple(lines), tuple(problems), tuple(notes))


def _token(environ: Mapping[str, str], problems: list[Finding], *, several: bool) -> str:
    """Returns the place of the token, in words; all hosts of a job need the same token."""
    try:
        if several:
            find_token(None, environ)  # makes one if there is none, as `telegrad run` does
        if SECRET in environ:
            find_token(None, environ)
            return f"from {SECRET}"
        path = token_path(environ)
        if not path.exists():
            return f"none yet; the first job makes {path}"
        read_token_file(path)
        return f"{path} (mode {stat.S_IMODE(path.stat().st_mode):04o})"
    except (AuthenticationError, OSError) as error:
        problems.append(_finding(error, "name another one in TELEGRAD_TOKEN_FILE"))
        return "cannot be used"


def _tls(
    environ: Mapping[str, str],
    problems: list[Finding],
    notes: list[Finding],
    *,
    several: bool,
    name: str,
) -> str:
    """Returns the encryption of traffic from this host, in words."""
    try:
        tls = find_tls(None, environ, name)
    except AuthenticationError as error:
        problems.append(_finding(error, "see docs/certificates.md"))
        return "the certificates cannot be used"
    installed = importlib.util.find_spec("cryptography") is not None
    if tls is not None:
        return f"with certificates of the job's own authority, here {tls.certificate}"
    if installed:
        version = versions()["cryptography"]
        return f"beyond loopback, with certificates made at the start (cryptography {version})"
    found = Finding("the package cryptography, which encrypts, is not installed", TLS_ADVICE)
    (problems if several else notes).append(found)
    return "not beyond loopback: the package cryptography is not installed"


def _check_own_name(notes: list[Finding]) -> None:
    """Notes a host whose own name means loopback, as on Debian."""
    name = socket.gethostname()
    try:
        address = address_of(name)
    except OSError:
        return
    if is_loopback_address(address):
        found = ", ".join(each.address for each in interfaces()) or "an address of its own"
        notes.append(
            Finding(
                f"the name of this host, {name!r}, means {address} here, which leads nowhere from "
                "other hosts",
                f"name an address in --master-addr and MASTER_ADDR ({found}), or mend /etc/hosts",
            )
        )


# -- the reason for which a host cannot join: its connection to host 0, in words -----------------

CONNECT_SECONDS = 3.0
SAME: Final = (
    "give all hosts the same token, certificates of the same authority, and the same version of "
    "telegrad"
)
OPEN: Final = "open"
UNKNOWN_NAME: Final = "unknown name"
REFUSED: Final = "refused"
SILENT: Final = "silent"
NO_ROUTE: Final = "no route"
OTHER: Final = "other"
ROUTE_ERRORS: Final = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL})


@final
@dataclass(frozen=True, slots=True)
class PlainDial:
    """The result of a plain TCP connection to host 0.

    Attributes:
        host: The host in the command line.
        port: The port in the command line.
        ended: `open`, `unknown name`, `refused`, `silent`, `no route` or `other`.
        words: The system's description.
        address: The address that the name means here.
        source: The address of this host from which packets for it leave.
        own: The addresses of this host.
    """

    host: str
    port: int
    ended: str
    words: str = ""
    address: str = ""
    source: str = ""
    own: tuple[str, ...] = ()


def look_at_way(host: str, port: int) -> PlainDial:
    """Connects to host 0 and hangs up; blocks for at most 3 s plus the time of name lookup."""
    own = tuple(map(str, interfaces()))
    try:
        address = address_of(host)
    except OSError as error:
        return PlainDial(host, port, UNKNOWN_NAME, str(error), own=own)
    source = route_to(address) or ""
    ended, words = OPEN, ""
    try:
        with contextlib.closing(socket.create_connection((address, port), CONNECT_SECONDS)):
            pass
    except TimeoutError:
        ended, words = SILENT, f"no answer within {CONNECT_SECONDS:g} s"
    except ConnectionRefusedError as error:
        ended, words = REFUSED, str(error.strerror)
    except OSError as error:
        ended = NO_ROUTE if error.errno in ROUTE_ERRORS else OTHER
        words = str(error)
    return PlainDial(host, port, ended, words, address, source, own)


def explain(error: Exception, way: PlainDial) -> Finding:
    """Returns the reason for which this host did not join, from the error and its connection.

    Args:
        error: The error with which it gave up.
        way: The connection to host 0, tried afterwards.
    """
    where = f"{way.host}:{way.port}"
    meant = f" ({way.address})" if way.address and way.address != way.host else ""
    own = ", ".join(way.own) or "none but loopback"
    if isinstance(error, AuthenticationError | RendezvousError):
        return _finding(error, SAME)
    if way.ended == UNKNOWN_NAME:
        return Finding(
            f"host 0 was not found: {way.words}",
            f"name an address of host 0 in --master-addr, or add the name to /etc/hosts: echo "
            f"'ADDRESS {way.host}' | sudo tee -a /etc/hosts",
        )
    if way.address and is_loopback_address(way.address) and way.ended != OPEN:
        return Finding(
            f"--master-addr {way.host}{meant} leads to this host itself, and nobody listens at "
            f"port {way.port} here",
            "name an address of host 0 that other hosts reach (there: ip -brief address), the same "
            "on all hosts",
        )
    if way.ended == NO_ROUTE:
        return Finding(
            f"this host knows no way to host 0 at {where}{meant}: {way.words}; its addresses are "
            f"{own}",
            "name an address of host 0 in a network that both are in, the same on all hosts; see: "
            f"ip route get {way.address}",
        )
    if way.ended == SILENT:
        return Finding(
            f"host 0 at {where}{meant} does not answer: packets leave this host from "
            f"{way.source or 'no address'} and nothing comes back; a firewall drops them, or that "
            "is no address of host 0",
            f"on host 0 look whether {way.address} is its own (ip -brief address) and let the port "
            f"in, for example: sudo ufw allow proto tcp from {way.source or 'any'} to any port "
            f"{way.port}; this host has {own}",
        )
    if way.ended == REFUSED:
        return Finding(
            f"host 0 at {where}{meant} answers, and nobody listens at port {way.port} there",
            f"start the command on host 0 (--node-rank 0), with --master-port {way.port} and a "
            "--master-addr that is this address; where a firewall rejects instead of dropping, let "
            f"the port in: sudo ufw allow {way.port}/tcp",
        )
    if way.ended == OPEN:
        return Finding(
            f"at {where}{meant} somebody takes connections and does not speak as telegrad does "
            f"({error})",
            f"look on host 0 who that is: sudo ss -ltnp 'sport = :{way.port}'; choose another "
            "--master-port on all hosts if it is no telegrad",
        )
    return Finding(
        f"host 0 at {where}{meant} was not reached: {way.words or error}", f"this host has {own}"
    )


def _finding(error: Exception, fallback: str) -> Finding:
    """Splits the message of an error into problem and remedy."""
    words, _, remedy = str(error).partition("; ")
    return Finding(words, remedy or fallback)


# -- the command ---------------------------------------------------------------------------------

WORKER: Final = "telegrad.doctor.worker"
SECONDS: Final = 60.0
WRONG: Final = 1
HIGHEST_PORT: Final = 65535
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
        commands: The subcommands of `telegrad`.
        add_nodes: Adds the options by which hosts find each other, as for `telegrad run`.
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
        help="the number of workers on this host (default: 2 on one host, 1 on each of several)",
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
        "--no-listen", action="store_true", help="the workers here only connect out (port=None)"
    )
    parser.add_argument("--json", metavar="FILE", help="write the report there as well")


def problem_with(options: argparse.Namespace) -> str | None:
    """Returns the problem with the doctor's own options, in words; None if there is none."""
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
    return None


def doctor(options: argparse.Namespace, run_options: RunOptions) -> int:
    """Runs the command with options that were checked; returns its exit code."""
    try:
        return _doctor(options, dataclasses.replace(run_options, gather=options.timeout))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _doctor(options: argparse.Namespace, run_options: RunOptions) -> int:
    several = run_options.nodes > 1
    host = look_at_host(
        os.environ, master=run_options.host if several else None, name=run_options.name
    )
    _say("\n".join(line for each in host.lines for line in wrapped(each, "")))
    if host.problems and several:
        _say(findings("problem", host.problems))
        _write(options.json, host, None, host.problems)
        return WRONG
    with tempfile.TemporaryDirectory(prefix="telegrad-doctor-") as directory:
        return _examine(options, run_options, host, Path(directory) / "report.json")


def _examine(
    options: argparse.Namespace, run_options: RunOptions, host: HostFacts, file: Path
) -> int:
    """Runs the workers, and prints their report."""
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
    if code > 128:  # a signal, whose sender knows about it
        return code
    report = _read(file)
    problems = list(dict.fromkeys([*host.problems, *failure]))  # the same one may be in both
    if report is None and not problems:
        problems.append(
            Finding(
                "the workers ended without a report; what they wrote stands above",
                "look at the first line of the worker that failed; with --timeout there is more "
                "time",
            )
        )
    if report is not None:
        _say(report["text"])
    if host.notes:
        _say(findings("note", host.notes, " on this host"))
    if problems:
        _say(findings("problem", problems, " on this host"))
    _write(options.json, host, report, problems)
    wrong = bool(problems) or report is None or not report["ok"] or code != 0
    return WRONG if wrong else 0


def explained(
    options: RunOptions, error: OSError | TelegradError, refused: Sequence[str]
) -> list[Finding]:
    """Returns the reasons for which the hosts did not meet.

    Args:
        options: The settings from the command line.
        error: The error with which this launcher gave up.
        refused: The connections that were refused here, in words.
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
                f"{token}run on each of them the same command with its own --node-rank; where it "
                f"runs, it says why it does not come in; what has to be open here: sudo ufw allow "
                f"{options.port}/tcp",
            )
        ]
    found = _finding(error, "see docs/network.md")
    if "--bind" not in found.remedy:
        remedy = found.remedy.replace("RpcOptions(bind='0.0.0.0')", "--bind 0.0.0.0")
        found = dataclasses.replace(found, remedy=remedy)
    return [found]


def _read(file: Path) -> dict[str, Any] | None:
    try:
        report: dict[str, Any] = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    return report


def _write(
    path: str | None, host: HostFacts, report: dict[str, Any] | None, problems: Sequence[Finding]
) -> None:
    """Writes the whole report as JSON, for programs."""
    if path is None:
        return
    plain = {key: value for key, value in (report or {}).items() if key != "text"}
    whole = {
        "ok": bool(report and report["ok"] and not problems),
        "host": socket.gethostname(),
        "here": dataclasses.asdict(host),
        "failures": [dataclasses.asdict(each) for each in problems],
        "report": plain or None,
    }
    Path(path).write_text(json.dumps(whole, indent=2) + "\n")


def _say(text: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(f"{text}\n\n")
        sys.stdout.flush()
