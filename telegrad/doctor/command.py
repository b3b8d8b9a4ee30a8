"""`telegrad doctor`: examines this host, then every pair of workers of a small job on all hosts."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
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
from telegrad.launch.seams import LogRelay, Refusals, RunOptions, run
from telegrad.rpc import RpcOptions
from telegrad.transport import (
    address_of,
    cores,
    find_tls,
    find_token,
    interfaces,
    is_loopback_address,
    kind_of_failure,
    read_token_file,
    route_to,
    set_grpc_environment,
    token_path,
)

# -- facts about this host: versions, addresses, token, certificates -----------------------------

PACKAGES: Final = ("Python", "telegrad", "numpy", "grpcio")
SHOWN: Final = ("TELEGRAD_", "GRPC_")  # variables that change what workers do
SECRET: Final = "TELEGRAD_TOKEN"
UNCRYPTED: Final = Finding(
    "the package cryptography, which encrypts, is not installed", "run: pip install cryptography"
)


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
    token, no_token = _token(environ, several=several)
    encryption, tls = _tls(environ, name)
    noted = tls is UNCRYPTED and not several  # one host has nothing to encrypt
    own_name = _own_name() if master in (None, socket.gethostname()) else None
    known = versions()
    told = [f"{name} {known[name.lower()]}" for name in PACKAGES if name.lower() in known]
    lines = [
        f"host {socket.gethostname()}: {', '.join(told)}; cores: {cores()}",
        f"addresses: {', '.join(map(str, interfaces())) or 'none but loopback'}",
        f"token: {token}",
        f"encryption: {encryption}",
    ]
    own = {SECRET: environ.get(SECRET, "")}
    set_grpc_environment(own, imported=())  # telegrad has set these itself
    if shown := {item for item in environ.items() - own.items() if item[0].startswith(SHOWN)}:
        lines.append(f"environment: {', '.join(map('='.join, sorted(shown)))}")
    problems, notes = [no_token, None if noted else tls], [tls if noted else None, own_name]
    return HostFacts(tuple(lines), tuple(filter(None, problems)), tuple(filter(None, notes)))


def _token(environ: Mapping[str, str], *, several: bool) -> tuple[str, Finding | None]:
    """Returns the place of the token, which all hosts of a job need, in words; and a problem."""
    try:
        if several or SECRET in environ:
            find_token(None, environ)  # makes one if there is none, as `telegrad run` does
        if SECRET in environ:
            return f"from {SECRET}", None
        path = token_path(environ)
        if not path.exists():
            return f"none yet; the first job makes {path}", None
        read_token_file(path)
        return f"{path} (mode {stat.S_IMODE(path.stat().st_mode):04o})", None
    except (AuthenticationError, OSError) as error:
        return "cannot be used", _finding(error, "name another one in TELEGRAD_TOKEN_FILE")


def _tls(environ: Mapping[str, str], name: str) -> tuple[str, Finding | None]:
    """Returns the encryption of traffic from this host, in words; and a problem."""
    try:
        tls = find_tls(None, environ, name)
    except AuthenticationError as error:
        problem = _finding(error, "see docs/certificates.md")
        return "the certificates cannot be used", problem
    if tls is not None:
        return f"with certificates of the job's own authority, here {tls.certificate}", None
    if importlib.util.find_spec("cryptography") is None:
        return "not beyond loopback: the package cryptography is not installed", UNCRYPTED
    version = versions()["cryptography"]
    return f"beyond loopback, with certificates made at the start (cryptography {version})", None


def _own_name() -> Finding | None:
    """Returns a note if this host's own name means loopback, as on Debian."""
    name = socket.gethostname()
    try:
        address = address_of(name)
    except OSError:
        return None
    if not is_loopback_address(address):
        return None
    found = ", ".join(each.address for each in interfaces()) or "an address of its own"
    return Finding(
        f"the name of this host, {name!r}, means {address} here, which leads nowhere from other "
        "hosts",
        f"name an address in --master-addr and MASTER_ADDR ({found}), or mend /etc/hosts",
    )


# -- the reason for which a host cannot join: its connection to host 0, in words -----------------

CONNECT_SECONDS = 3.0
SAME: Final = (
    "give all hosts the same token, certificates of the same authority, and the same version of "
    "telegrad"
)


@final
@dataclass(frozen=True, slots=True)
class PlainDial:
    """The result of a plain TCP connection to host 0.

    Attributes:
        host: The host in the command line.
        port: The port in the command line.
        ended: `open`, `unknown name`, or one that `kind_of_failure` names.
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
        return PlainDial(host, port, "unknown name", str(error), own=own)
    ended, words = "open", ""
    try:
        socket.create_connection((address, port), CONNECT_SECONDS).close()
    except OSError as error:
        ended, words = kind_of_failure(error), str(error)
    return PlainDial(host, port, ended, words, address, route_to(address) or "", own)


def explain(error: Exception, way: PlainDial) -> Finding:
    """Returns the reason for which this host did not join, from the error and its connection.

    Args:
        error: The error with which it gave up.
        way: The connection to host 0, tried afterwards.
    """
    if isinstance(error, AuthenticationError | RendezvousError):
        return _finding(error, SAME)
    meant = f" ({way.address})" if way.address and way.address != way.host else ""
    at, own = f"{way.host}:{way.port}{meant}", ", ".join(way.own) or "none but loopback"
    ended = way.ended
    if ended != "open" and way.address and is_loopback_address(way.address):
        ended = "loopback"
    found = {
        "unknown name": (
            f"host 0 was not found: {way.words}",
            f"name an address of host 0 in --master-addr, or add the name to /etc/hosts: echo "
            f"'ADDRESS {way.host}' | sudo tee -a /etc/hosts",
        ),
        "loopback": (
            f"--master-addr {way.host}{meant} leads to this host itself, and nobody listens at "
            f"port {way.port} here",
            "name an address of host 0 that other hosts reach (there: ip -brief address), the same "
            "on all hosts",
        ),
        "no route": (
            f"this host knows no way to host 0 at {at}: {way.words}; its addresses are {own}",
            "name an address of host 0 in a network that both are in, the same on all hosts; see: "
            f"ip route get {way.address}",
        ),
        "silent": (
            f"host 0 at {at} does not answer: packets leave this host from "
            f"{way.source or 'no address'} and nothing comes back; a firewall drops them, or that "
            "is no address of host 0",
            f"on host 0 look whether {way.address} is its own (ip -brief address) and let the port "
            f"in, for example: sudo ufw allow proto tcp from {way.source or 'any'} to any port "
            f"{way.port}; this host has {own}",
        ),
        "refused": (
            f"host 0 at {at} answers, and nobody listens at port {way.port} there",
            f"start the command on host 0 (--node-rank 0), with --master-port {way.port} and a "
            "--master-addr that is this address; where a firewall rejects instead of dropping, let "
            f"the port in: sudo ufw allow {way.port}/tcp",
        ),
        "open": (
            f"at {at} somebody takes connections and does not speak as telegrad does ({error})",
            f"look on host 0 who that is: sudo ss -ltnp 'sport = :{way.port}'; choose another "
            "--master-port on all hosts if it is no telegrad",
        ),
    }
    other = f"host 0 at {at} was not reached: {way.words or error}", f"this host has {own}"
    return Finding(*found.get(ended, other))


def explained(
    options: RunOptions, error: OSError | TelegradError, refused: Sequence[str]
) -> Finding:
    """Returns the reason for which the hosts did not meet.

    Args:
        options: The settings from the command line.
        error: The error with which this launcher gave up.
        refused: The connections that were refused here, in words.
    """
    missing = error.missing if isinstance(error, RendezvousTimeoutError) else ()
    if options.node != 0 and missing:
        return Finding(
            f"this host reached host 0, and others did not come: {', '.join(missing)}",
            "look at the doctor on those: it says there why",
        )
    if options.node != 0:
        return explain(error, look_at_way(options.host, options.port))
    if not missing:
        found = _finding(error, "see docs/network.md")
        remedy = found.remedy
        if "--bind" not in remedy:
            remedy = remedy.replace("RpcOptions(bind='0.0.0.0')", "--bind 0.0.0.0")
        return Finding(found.words, remedy)
    heard = (
        f"somebody came and was turned away: {'; '.join(refused)}"
        if refused
        else f"nobody else has come through at port {options.port} (of whom TLS turns away "
        "nothing is heard here)"
    )
    token = ""
    if any("another token" in each or "no token" in each for each in refused):
        token = (
            "set TELEGRAD_TOKEN, or the file TELEGRAD_TOKEN_FILE, to the same value on all hosts; "
        )
    return Finding(
        f"missing after {options.gather:g} s: {', '.join(missing)}; {heard}",
        f"{token}run on each of them the same command with its own --node-rank; where it runs, it "
        "says why it does not come in; what has to be open here: sudo ufw allow "
        f"{options.port}/tcp",
    )


def _finding(error: Exception, fallback: str) -> Finding:
    """Splits the message of an error into problem and remedy."""
    words, _, remedy = str(error).partition("; ")
    return Finding(words, remedy or fallback)


# -- the command ---------------------------------------------------------------------------------

WORKER: Final = "telegrad.doctor.worker"
SECONDS: Final = 60.0
WRONG: Final = 1
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
    add_nodes(parser)
    words = "seconds for all hosts to come, and again for the pairs (default: 60)"
    parser.add_argument("--timeout", type=_seconds, default=SECONDS, metavar="S", help=words)
    listen = parser.add_mutually_exclusive_group()
    words = "ports for the workers here to listen on"
    listen.add_argument("--port", type=_ports, default=0, metavar="FIRST-LAST", help=words)
    words = "the workers here only connect out (port=None)"
    listen.add_argument("--no-listen", dest="port", action="store_const", const=None, help=words)
    parser.add_argument("--json", metavar="FILE", help="write the report there as well")


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (seconds := float(text)) < math.inf:
            return seconds
    raise argparse.ArgumentTypeError(f"must be a number of seconds above 0 (got {text!r})")


def _ports(text: str) -> int | str:
    port = int(text) if text.isdecimal() else text
    try:
        RpcOptions(port=port)
    except ValueError as error:
        words = f"must be a port or a range such as 29501-29599 (got {text!r})"
        raise argparse.ArgumentTypeError(words) from error
    return port


def doctor(options: argparse.Namespace, run_options: RunOptions) -> int:
    """Runs the command with options that were checked; returns its exit code."""
    try:
        return _doctor(options, run_options)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _doctor(options: argparse.Namespace, run_options: RunOptions) -> int:
    several = run_options.nodes > 1
    master = run_options.host if several else None
    host = look_at_host(os.environ, master=master, name=run_options.name)
    _say("\n".join(line for each in host.lines for line in wrapped(each, "")))
    code, report, problems = WRONG, None, host.problems
    if not (several and problems):  # else nothing would start
        code, report, failures = _examined(options, run_options)
        if code > 128:  # a signal, whose sender knows about it
            return code
        problems = tuple(dict.fromkeys((*problems, *failures)))  # the same one may be in both
    _say("" if report is None else report.pop("text"))
    _say(findings("note", host.notes, " on this host"))
    _say(findings("problem", problems, " on this host"))
    fine = bool(report and report["ok"] and not problems)
    if options.json is not None:
        whole = {
            "ok": fine,
            "host": socket.gethostname(),
            "here": dataclasses.asdict(host),
            "failures": [dataclasses.asdict(each) for each in problems],
            "report": report,
        }
        Path(options.json).write_text(json.dumps(whole, indent=2) + "\n")
    return 0 if fine and code == 0 else WRONG


def _examined(
    options: argparse.Namespace, run_options: RunOptions
) -> tuple[int, dict[str, Any] | None, list[Finding]]:
    """Runs the workers; returns their exit code, their report, and why there is none."""
    failures: list[Finding] = []

    def failed(relay: LogRelay, error: OSError | TelegradError) -> None:
        relay.clear()
        failures.append(explained(settings, error, refused.found))

    with tempfile.TemporaryDirectory(prefix="telegrad-doctor-") as directory:
        file = Path(directory) / "report.json"
        arguments = [str(file), json.dumps(options.timeout), json.dumps(options.port)]
        command = [sys.executable, "-u", "-m", WORKER, *arguments]
        settings = dataclasses.replace(run_options, command=command, gather=options.timeout)
        with Refusals() as refused:
            code = run(settings, failed)
        with contextlib.suppress(OSError, ValueError):
            return code, json.loads(file.read_bytes()), failures
    words = "the workers ended without a report; what they wrote stands above"
    remedy = "look at the first line of the worker that failed; with --timeout there is more time"
    return code, None, failures or [Finding(words, remedy)]


def _say(text: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(f"{text}\n\n" if text else "")
        sys.stdout.flush()
