"""One run of `telegrad run` on this host, which hosts the coordinator or reaches it.

--nnodes 1     a random job name and token, the coordinator on a free port of loopback
node 0 of N    the job is named after the script and the port; the user's token; the coordinator
               on --master-addr and --master-port
node R of N    the same name and token; the coordinator is dialled until it answers
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import os
import re
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Final, TextIO, final

from telegrad.errors import AuthenticationError, RendezvousError, TelegradError, WorkerLostError
from telegrad.launch.env import JobEnvironment
from telegrad.launch.log_relay import LogRelay, Screen
from telegrad.launch.nodes import (
    GATHER_SECONDS,
    GONE,
    SAY_SECONDS,
    Event,
    Nodes,
    Share,
    share_ranks,
)
from telegrad.launch.supervisor import Supervisor, Watcher
from telegrad.rendezvous import (
    COORDINATOR_NAME,
    Coordinator,
    JobAddress,
    JobPort,
    Store,
    TCPStore,
    secured,
)
from telegrad.transport import (
    ConnectionLimits,
    GrpcTransport,
    address_of,
    find_local,
    find_tls,
    find_token,
    interfaces,
    is_everywhere,
    is_loopback_address,
    own_loopback,
    route_to,
    self_signed_tls,
    write_token_file,
)
from telegrad.types import WorkerInfo
from telegrad.wire import DecodeLimits

# -- refused connections at a port of this process, in words for people --------------------------

AUDIT: Final = "telegrad.audit"
REFUSED: Final = "connection.refused"
MOST_REFUSALS = 16  # distinct ones: strangers choose their words


@final
class Refusals(logging.Handler):
    """Collects the connections that this process refuses inside a `with` block, by the audit log.

    Args:
        say: Gets each distinct refusal at once; called in the audit log's thread.

    Attributes:
        found: The refusals, each once.
    """

    def __init__(self, say: Callable[[str], object] | None = None) -> None:
        super().__init__(logging.WARNING)
        self._say = say
        self.found: list[str] = []

    def __enter__(self) -> Refusals:
        logging.getLogger(AUDIT).addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger(AUDIT).removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Takes a record."""
        told = getattr(record, "telegrad", {})
        if told.get("event") == REFUSED and len(self.found) < MOST_REFUSALS:
            who = str(told.get("peer", "a stranger")).rpartition(".")[2]
            address = str(told.get("address", "?")).rpartition(" ")[2]
            family, _, place = address.partition(":")
            if family in ("ipv4", "ipv6"):  # without the port, which differs for each dial
                address = place.rpartition(":")[0]
            words = f"{who} from {address} ({told.get('words', '')})"
            if words not in self.found:
                self.found.append(words)
                if self._say is not None:
                    self._say(words)


# -- the run -------------------------------------------------------------------------------------

DEFAULT_LIMITS = ConnectionLimits()
COULD_NOT_START = 1
FIRST_SESSION_RANK = -2  # of launchers, downwards; the coordinator is -1
DIAL_SECONDS = 10.0
DIAL_PAUSE = 0.2
GOODBYE_SECONDS = 10.0  # for the other launchers to read the log to its end


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The settings from the command line.

    Attributes:
        command: The command that each worker executes.
        script: The script or module, for the job's name.
        workers: The number of workers that this host starts.
        nodes: The number of hosts.
        node: The number of this host.
        host: The host of node 0.
        port: The coordinator's port there; 0 for a free one, on one host alone.
        bind: The address on which node 0 listens, if it is not `host`.
        limits: The limits on what others may use of the coordinator.
        gather: Seconds for all nodes to come.
        verb: The command after `telegrad`, for the launcher's own lines.
    """

    command: Sequence[str]
    script: str
    workers: int
    nodes: int = 1
    node: int = 0
    host: str = field(default_factory=own_loopback)
    port: int = 0
    bind: str | None = None
    limits: ConnectionLimits = DEFAULT_LIMITS
    gather: float = GATHER_SECONDS
    verb: str = "run"

    @property
    def job(self) -> str:
        """The job's name, made from the script's; on one host no other run has the same."""
        stem = re.sub(r"[^A-Za-z0-9._-]", "-", Path(self.script).stem)[:40] or "job"
        return f"{stem}-{secrets.token_hex(4)}" if self.nodes == 1 else f"{stem}-{self.port}"

    @property
    def name(self) -> str:
        """The name that this launcher's certificate must have, if workers have certificates."""
        return COORDINATOR_NAME if self.node == 0 else f"node{self.node}"

    def address(self, job: str) -> JobAddress:
        """Returns the address of the job."""
        return JobAddress(
            host=self.host,
            port=self.port,
            rank=0,
            world_size=1,
            job=job,
            hosts_store=self.node == 0,
        )


def _say_failed(relay: LogRelay, error: OSError | TelegradError) -> None:
    relay.say(f"could not start: {error}")


def run(
    options: RunOptions,
    failed: Callable[[LogRelay, OSError | TelegradError], None] = _say_failed,
) -> int:
    """Runs the workers of this host to their end; returns the exit code.

    Args:
        options: The settings from the command line.
        failed: Reports the error if the workers could not be started.
    """
    relay = LogRelay(_screen(sys.stdout), _screen(sys.stderr), options.verb)
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    directory = tempfile.mkdtemp(prefix="telegrad-")  # 0700
    watcher = Watcher(directory)
    try:
        return _run(options, relay, watcher, os.path.join(directory, "token"))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (OSError, TelegradError) as error:
        failed(relay, error)
        return COULD_NOT_START
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        watcher.dismiss()
        signal.signal(signal.SIGINT, previous)


def _run(options: RunOptions, relay: LogRelay, watcher: Watcher, token_file: str) -> int:
    job = options.job
    with contextlib.ExitStack() as stack:
        if options.nodes == 1:
            token = write_token_file(token_file)
            coordinator, port = stack.enter_context(serving(options, job, token, None))
            environment = environment_of(options, job, token_file, port)
            ended = functools.partial(coordinator.ended, how="exit code 0")
            return Supervisor(options.command, environment, relay, watcher, on_ended=ended).run()
        token = write_token_file(token_file, find_token(None, os.environ))
        host = _host_for_workers(options)
        others = _Others(options.nodes)
        on_ended: Callable[[int], None] | None = None
        if options.node == 0:
            coordinator, _ = stack.enter_context(serving(options, job, token, others))
            store: Store = coordinator.store
            on_ended = functools.partial(coordinator.ended, how="exit code 0")
            relay.say(f"node 0 of {options.nodes} is ready at {options.host}:{options.port}")
        else:
            store = stack.enter_context(_reaching(options, job, token, relay))
        with Refusals(lambda words: relay.say(f"turned away: {words}")):
            share = share_ranks(
                store,
                options.node,
                options.nodes,
                options.workers,
                relay.say,
                timeout=options.gather,
            )
        environment = environment_of(options, job, token_file, options.port, share, host)
        nodes = Nodes(store, options.node, options.nodes)
        stack.callback(nodes.close)
        others.tell(nodes)
        code = Supervisor(options.command, environment, relay, watcher, nodes, on_ended).run()
        if options.node == 0:
            others.wait()
        return code


@contextlib.contextmanager
def serving(
    options: RunOptions, job: str, token: bytes, others: _Others | None
) -> Iterator[tuple[Coordinator, int]]:
    """Runs the coordinator here; yields it and its port."""
    tls = find_tls(None, os.environ, options.name)
    make = functools.partial(GrpcTransport, tls=tls)
    coordinator = Coordinator(
        # Workers that have no TCP port are dialled through their Unix sockets.
        [JobPort(options.address(job), make, bind=options.bind, local=find_local(tls)).transport],
        job=job,
        token=token,
        world_size=options.workers if options.nodes == 1 else None,
        on_session_lost=None if others is None else others.on_session_lost,
        limits=options.limits,
    )
    with contextlib.closing(coordinator):
        yield coordinator, int(coordinator.start()[0].rpartition(":")[2])


@contextlib.contextmanager
def _reaching(options: RunOptions, job: str, token: bytes, relay: LogRelay) -> Iterator[Store]:
    """Dials node 0 until it answers; yields its store.

    What this host lacks is found before the first dial: node 0 may lack the same, and never answer.

    Raises:
        RendezvousError: Node 0 belongs to another job.
        AuthenticationError: Node 0 has another token, or this host lacks what encryption needs.
        TimeoutError: Node 0 did not answer in time.
    """
    tls = find_tls(None, os.environ, options.name)
    address = secured(options.address(job), mutual=tls is not None, insecure=False)
    if tls is None and address.endpoint:  # the workers here will encrypt
        self_signed_tls()
    began = said = time.monotonic()
    while True:
        try:
            store = TCPStore.connect(
                address.coordinator_endpoint,
                job=job,
                token=token,
                transports=[GrpcTransport(tls=tls)],
                name=options.name,
                rank=FIRST_SESSION_RANK - options.node,
                timeout=DIAL_SECONDS,
            )
            break
        except AuthenticationError as error:
            if "token" not in str(error):
                raise
            raise AuthenticationError(f"{error}; {how_to_copy(options.host)}") from error
        except RendezvousError:
            raise
        except ConnectionError as error:
            now, why = time.monotonic(), _why_unreached(options.host, error)
            if now - began > options.gather:
                raise TimeoutError(
                    f"node 0 was not reached at {options.host}:{options.port} within "
                    f"{options.gather:g} s ({why}); start it, and check --master-addr and the "
                    "firewall"
                ) from error
            if said == began or now - said > SAY_SECONDS:
                relay.say(f"waiting for node 0 at {options.host}:{options.port} ({why})")
                said = now
            time.sleep(DIAL_PAUSE)
    try:
        yield store
    finally:
        store.close()


def _host_for_workers(options: RunOptions) -> str:
    """Returns the coordinator's host for the workers of this host; other hosts reach it there too.

    Debian's `/etc/hosts` maps a machine's own name to 127.0.1.1. Workers that used that address
    would tell the other hosts to dial loopback.

    Raises:
        RendezvousError: It is not clear which address other hosts can reach.
        OSError: A host name is not known.
    """
    if options.node != 0 or options.bind is None or not _is_name_of_loopback(options.host):
        return options.host
    if not is_everywhere(options.bind):
        return options.bind
    found = [each for each in interfaces() if options.bind == "::" or ":" not in each.address]
    first = [each for each in found if ":" not in each.address] or found
    if len(first) > 1:
        raise RendezvousError(
            f"{options.host!r} means {address_of(options.host)} here, which leads nowhere from "
            f"other hosts, and it is not clear which address of this machine they reach "
            f"({', '.join(map(str, found))}); name it in --bind"
        )
    return first[0].address if first else options.host


def _is_name_of_loopback(host: str) -> bool:
    """Returns True for a name that means loopback here but may mean this machine elsewhere.

    >>> _is_name_of_loopback("localhost"), _is_name_of_loopback("127.0.0.2")
    (False, False)
    """
    own = address_of(host)
    return host not in ("localhost", own) and is_loopback_address(own)


def _why_unreached(host: str, error: ConnectionError) -> str:
    """Returns an error in words, with this machine's addresses if no route leads to the host."""
    try:
        if route_to(host) is not None:
            return str(error)
    except OSError as unknown:
        return str(unknown)
    own = ", ".join(map(str, interfaces())) or "none but loopback"
    return f"this machine has no route to {host}; its addresses are {own}: check the network"


def how_to_copy(host: str) -> str:
    """Returns instructions to copy node 0's token to this host."""
    name = os.environ.get("TELEGRAD_TOKEN_FILE") or "~/.config/telegrad/token"
    if "TELEGRAD_TOKEN" in os.environ:
        return "set TELEGRAD_TOKEN to the same value on all nodes"
    return (
        f"copy node 0's to this one: mkdir -p -m 700 {os.path.dirname(name) or '.'} && "
        f"scp -p {host}:{name} {name}"
    )


@final
class _Others:
    """The launchers of the other hosts, as node 0's coordinator sees them.

    Args:
        nodes: The number of nodes, this one included.
    """

    def __init__(self, nodes: int) -> None:
        self._changed = threading.Condition()
        self._here = set(range(1, nodes))
        self._nodes: Nodes | None = None

    def on_session_lost(self, peer: WorkerInfo, error: WorkerLostError) -> None:
        """Handles a session's end, on the loop. While nodes gather, a launcher may dial again."""
        node = FIRST_SESSION_RANK - peer.rank
        with self._changed:
            if node not in self._here or self._nodes is None:
                return
            self._here.discard(node)
            self._changed.notify_all()
            self._nodes.tell(Event(GONE, node, text=(error.reason,)))  # ignored if it is done

    def tell(self, nodes: Nodes) -> None:
        """Reports the end of launchers to `nodes` from now on."""
        with self._changed:
            self._nodes = nodes

    def wait(self) -> None:
        """Waits until all launchers have gone, and so have read the log to its end."""
        with self._changed:
            self._changed.wait_for(lambda: not self._here, GOODBYE_SECONDS)


def _screen(stream: TextIO) -> Screen:
    terminal = stream.isatty()
    columns = shutil.get_terminal_size().columns if terminal else 80
    return Screen(FileIO(stream.fileno(), "w", closefd=False), terminal=terminal, columns=columns)


def environment_of(
    options: RunOptions,
    job: str,
    token_file: str,
    port: int,
    share: Share | None = None,
    host: str = "",
) -> JobEnvironment:
    """Returns the environment of the workers of this host, which are all of the job by default."""
    share = share or Share(0, options.workers)
    return JobEnvironment(
        base=os.environ,
        workers=options.workers,
        first_rank=share.first_rank,
        world_size=share.world_size,
        host=host or options.host,
        port=port,
        job=job,
        token_file=token_file,
    )


# -- `--limit NAME=NUMBER`: limits of the coordinator that a command hosts -----------------------

# The names and least values of those `rpc.Limits` that a coordinator has as well; the others are
# limits of calls, and a coordinator serves none.
LEAST: Final[Mapping[str, int]] = {"document_bytes": 2**16, "message_bytes": 2**20}
MOST: Final = 2**32 - 1


def parse_limit(text: str) -> tuple[str, int]:
    """Returns the name and number of one `--limit`.

    Raises:
        argparse.ArgumentTypeError: The text is not a limit.

    >>> parse_limit("document_bytes=1000000")
    ('document_bytes', 1000000)
    """
    name, separator, value = text.partition("=")
    if name not in LEAST or not separator:
        known = ", ".join(LEAST)
        raise argparse.ArgumentTypeError(
            f"write NAME=NUMBER, with a name of {known} (got {text!r})"
        )
    if not (value.isdecimal() and LEAST[name] <= int(value) <= MOST):
        raise argparse.ArgumentTypeError(
            f"{name} must be a number from {LEAST[name]} to {MOST} (got {value!r})"
        )
    return name, int(value)


def limits_of(pairs: Iterable[tuple[str, int]]) -> ConnectionLimits:
    """Returns the limits with these numbers; those that are not named keep their defaults.

    >>> limits_of([("document_bytes", 1000000)]).received.document_bytes
    1000000
    """
    return ConnectionLimits(received=DecodeLimits(**dict(pairs)))
