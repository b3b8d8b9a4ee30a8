r"""Multicast: workers of one network ask a group for their job, and rank 0 answers.

    another worker                 group                        rank 0
    ask JOB NONCE      ──────────▶   │   ──────────▶  of its job: answers
                       ◀──────────   │   ◀──────────  here JOB NONCE ENDPOINT

A worker repeats its question until it has joined. The answer goes to the group, so one answer
serves all who have asked. Nothing secret is sent, and nothing in an answer is trusted: the worker
dials the endpoint, and both prove the token, as always. A forged answer costs the time of a refused
dial, and the next endpoint has its turn. A datagram is text, of 512 bytes at most:

    telegrad multicast 1\nask JOB NONCE\n
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, final
from urllib.parse import urlsplit

from telegrad.errors import RendezvousError
from telegrad.rendezvous.endpoint_source import EndpointSource, Published
from telegrad.transport import (
    address_of,
    get_logger,
    interfaces,
    is_number,
    route_to,
    start_thread,
)

logger = get_logger(__name__)

MAGIC: Final = "telegrad multicast 1"
LONGEST: Final = 512  # bytes of a datagram; one fits into every network's packet
HOPS: Final = 1  # routers are not passed
IP_MULTICAST_ALL: Final = 49  # Linux; the socket module has no name for it

LOOK_SECONDS: Final = 0.2  # for answers to one question; a round trip takes less than a millisecond
# Every sender hears its own datagrams. If it hears none in this time, there is no multicast.
ECHO_SECONDS: Final = 4.0
ANSWER_PAUSE: Final = 0.01  # between two answers; questions that came meanwhile share the next one
MOST_READ: Final = 1000  # datagrams at a time
MOST_ENDPOINTS: Final = 64  # that a worker keeps; strangers may announce any number

_WORD: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")


@final
@dataclass(frozen=True, slots=True)
class MulticastGroup:
    """A group address, and the interface through which to reach it.

    Attributes:
        address: The address of the group, as a number.
        port: The UDP port.
        interface: The interface's name, or an address of it; "" for the one to which the routing
            table sends the group's packets.
    """

    address: str
    port: int
    interface: str = ""

    def __str__(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}"

    def own_address(self) -> str:
        """Returns this machine's address on the interface.

        Raises:
            RendezvousError: There is no such interface, or no route to the group.
        """
        v6 = ":" in self.address
        mine = [each for each in interfaces() if (":" in each.address) == v6]
        if not self.interface:
            found = route_to(self.address)
            if found is None and len(mine) == 1:  # a network without a gateway
                found = mine[0].address
            if found is None:
                raise self.no_multicast("this machine has no route to it")
            return found
        if is_number(self.interface):
            return self.interface
        if self.interface == "lo":
            return "::1" if v6 else "127.0.0.1"
        for each in mine:
            if each.name == self.interface:
                return each.address
        raise self.no_multicast(f"this machine has no interface {self.interface!r} with an address")

    def no_multicast(self, reason: str) -> RendezvousError:
        """Returns the error of a group that cannot be used, with the remedy."""
        through = f" through {self.interface}" if self.interface else ""
        own = ", ".join(map(str, interfaces())) or "none but loopback"
        return RendezvousError(
            f"multicast group {self}{through} cannot be used: {reason}; write '?interface=' with "
            f"the interface of the network that all workers share (this machine has {own}), let "
            f"the firewall pass UDP port {self.port}, or do without multicast: "
            "init_method='tcp://HOST:PORT' with the host of rank 0"
        )

    def open(self) -> socket.socket:
        """Returns a socket that sends to the group and hears what others, and itself, send there.

        Raises:
            RendezvousError: That is impossible here; the message has the remedy.
        """
        own = self.own_address()
        v6 = ":" in self.address
        opened = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET, socket.SOCK_DGRAM)
        try:
            opened.setblocking(False)
            # Each worker of this host has a socket for the group, and hears every datagram.
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if v6:
                self._join_v6(opened, own)
            else:
                self._join_v4(opened, own)
        except (OSError, ValueError) as error:
            opened.close()
            raise self.no_multicast(getattr(error, "strerror", "") or str(error)) from error
        return opened

    def _join_v4(self, opened: socket.socket, own: str) -> None:
        index = struct.pack("4s4si", socket.inet_aton(self.address), socket.inet_aton(own), 0)
        opened.bind((self.address, self.port))
        opened.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, index)
        opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, index)
        opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
        opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, HOPS)
        with contextlib.suppress(OSError):  # else it hears what others join through elsewhere
            opened.setsockopt(socket.IPPROTO_IP, IP_MULTICAST_ALL, 0)

    def _join_v6(self, opened: socket.socket, own: str) -> None:
        index = self._interface_index(own)
        group = socket.inet_pton(socket.AF_INET6, self.address) + struct.pack("@I", index)
        opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group)
        opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
        opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 1)
        opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, HOPS)
        opened.bind((self.address, self.port, 0, index))

    def _interface_index(self, own: str) -> int:
        name = next((each.name for each in interfaces() if each.address == own), "lo")
        return socket.if_nametoindex(name)


# -- datagrams: values in, values out ------------------------------------------------------------


@final
@dataclass(frozen=True, slots=True)
class Datagram:
    """A question for a job, or the answer to it.

    Attributes:
        job: The name of the job.
        nonce: A random word, by which its sender recognises its own datagrams.
        endpoint: The coordinator's endpoint; "" in a question.
    """

    job: str
    nonce: str
    endpoint: str = ""

    def data(self) -> bytes:
        r"""Returns the bytes of the datagram.

        >>> Datagram("default", "a1", "grpc://10.0.0.1:4000").data()
        b'telegrad multicast 1\nhere default a1 grpc://10.0.0.1:4000\n'
        """
        words = ["here", self.job, self.nonce, self.endpoint]
        if not self.endpoint:
            words = ["ask", self.job, self.nonce]
        return f"{MAGIC}\n{' '.join(words)}\n".encode("ascii")


def read_datagram(data: bytes) -> Datagram | None:
    r"""Reads a datagram, which anybody may have sent; returns None if it is something else.

    >>> read_datagram(b"telegrad multicast 1\nask default a1\n")
    Datagram(job='default', nonce='a1', endpoint='')
    """
    try:
        lines = data.decode("ascii").split("\n") if len(data) <= LONGEST else []
    except UnicodeDecodeError:
        return None
    match [line.split(" ") for line in lines]:
        case [_, ["ask", job, nonce], [""]]:
            endpoint = ""
        case [_, ["here", job, nonce, endpoint], [""]] if _is_endpoint(endpoint):
            pass
        case _:
            return None
    if lines[0] != MAGIC or not _WORD.fullmatch(job) or not _WORD.fullmatch(nonce):
        return None
    return Datagram(job, nonce, endpoint)


def _is_endpoint(text: str) -> bool:
    """Returns True for an endpoint of gRPC with an address: names would have to be looked up."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        return False
    if parts.scheme not in ("grpc", "grpcs") or not host or not port or not is_number(host):
        return False
    return text == f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


# -- rank 0 answers, the others ask --------------------------------------------------------------


@final
class MulticastSource(EndpointSource):
    """A multicast group, in which rank 0 answers the others.

    Args:
        group: The group.
        job: The name of the job; datagrams of other jobs are ignored.
    """

    def __init__(self, group: MulticastGroup, job: str) -> None:
        self._group = group
        self._job = job
        self.name = f"multicast group {group}"
        self.waiting = (
            f"rank 0 of job {job!r} to answer on {self.name} (it has not started, or the network "
            "does not pass multicast from it to here)"
        )
        self.unread = f"has not answered on {self.name}"
        self.remedy = (
            f"start it with the same address and job={job}, and check that both are on one "
            f"network which passes multicast and UDP port {group.port}; else write "
            "init_method='tcp://HOST:PORT' with the host of rank 0"
        )
        self._nonce = secrets.token_hex(8)
        self._socket: socket.socket | None = None
        self._began = 0.0
        self._hears = False  # its own datagrams
        self._tries: dict[str, int] = {}  # of each endpoint that was announced
        self._sources: dict[str, str] = {}
        self._stop, self._stopped = socket.socketpair()
        self._thread: threading.Thread | None = None

    def publish(self, endpoint: str) -> None:
        """Answers every question for the job, in a thread of its own, until `withdraw`.

        Raises:
            RendezvousError: This machine cannot use the group; known after 4 s at most.
        """
        parts = urlsplit(endpoint)
        if parts.scheme not in ("grpc", "grpcs") or not parts.hostname:
            raise RendezvousError(
                f"the coordinator listens at {endpoint}, which cannot be announced by multicast; "
                "leave bind='unix' out, or write init_method='file:///path'"
            )
        host = address_of(parts.hostname)
        host = f"[{host}]" if ":" in host else host
        here = Datagram(self._job, self._nonce, f"{parts.scheme}://{host}:{parts.port}")
        opened = self._opened()
        self._send(opened, here)
        ends = time.monotonic() + ECHO_SECONDS
        while not self._hears:
            self._wait(opened, ends - time.monotonic())
            for found, _ in self._received(opened):
                self._hears |= found.nonce == self._nonce
            self._check_echo()
        self._thread = threading.Thread(
            target=self._answer, args=(opened, here), name="telegrad-multicast", daemon=True
        )
        start_thread(self._thread)

    def read(self) -> Published | None:
        """Asks, and returns the endpoint of an answer; each of several has its turn.

        Raises:
            RendezvousError: This machine cannot use the group; known after 5 s at most.
        """
        opened = self._opened()
        self._send(opened, Datagram(self._job, self._nonce))
        ends = time.monotonic() + LOOK_SECONDS
        while time.monotonic() < ends and 0 not in self._tries.values():
            self._wait(opened, ends - time.monotonic())
            for found, source in self._received(opened):
                self._hears |= found.nonce == self._nonce
                if found.endpoint and found.job == self._job:
                    self._note(found.endpoint, source)
        self._check_echo()
        if not self._tries:
            return None
        endpoint = min(self._tries, key=lambda each: self._tries[each])
        self._tries[endpoint] += 1
        return Published(endpoint, f"an answer from {self._sources[endpoint]}")

    def withdraw(self) -> None:
        """Ends the answers; idempotent."""
        self._stop.close()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._stopped.close()
        if self._socket is not None:
            self._socket.close()

    def unreached(self, published: Published, problem: str) -> str:
        """Returns what to say of an endpoint from here that has a problem, and the remedy."""
        return (
            f"multicast group {self._group} says {published.endpoint} ({published.by}), last error "
            f"there: {problem}; if somebody else answers there, write another port or '?job='"
        )

    def _opened(self) -> socket.socket:
        if self._socket is None:
            self._socket = self._group.open()
            self._began = time.monotonic()
        return self._socket

    def _send(self, opened: socket.socket, datagram: Datagram) -> None:
        try:
            opened.sendto(datagram.data(), (self._group.address, self._group.port))
        except BlockingIOError:
            logger.debug("a question to %s was not sent: its queue is full", self._group)
        except OSError as error:
            raise self._group.no_multicast(error.strerror or str(error)) from error

    def _wait(self, opened: socket.socket, seconds: float) -> None:
        """Waits until something came, or `withdraw` was called, or the time is over."""
        poller = select.poll()
        for each in {opened, self._stopped}:
            poller.register(each, select.POLLIN)
        poller.poll(max(seconds, 0.0) * 1000)

    def _received(self, opened: socket.socket) -> Iterator[tuple[Datagram, str]]:
        for _ in range(MOST_READ):
            try:
                data, source = opened.recvfrom(LONGEST + 1)
            except OSError:  # nothing more, or the interface is down
                return
            found = read_datagram(data)
            if found is not None:
                yield found, str(source[0])

    def _note(self, endpoint: str, source: str) -> None:
        """Keeps an endpoint, in place of the one that was tried most if there are too many."""
        if endpoint in self._tries:
            return
        if len(self._tries) >= MOST_ENDPOINTS:
            gone = max(self._tries, key=lambda each: self._tries[each])
            if self._tries[gone] == 0:
                return
            del self._tries[gone], self._sources[gone]
        self._tries[endpoint], self._sources[endpoint] = 0, source

    def _check_echo(self) -> None:
        if not self._hears and time.monotonic() - self._began >= ECHO_SECONDS:
            raise self._group.no_multicast(
                f"nothing that was sent there came back within {ECHO_SECONDS:g} s"
            )

    def _answer(self, opened: socket.socket, here: Datagram) -> None:
        """Answers questions until `withdraw`; runs in a thread."""
        while self._stop.fileno() >= 0:
            self._wait(opened, 3600.0)
            asked = [
                found
                for found, _ in self._received(opened)
                if found.job == here.job and not found.endpoint
            ]
            if asked:
                try:
                    self._send(opened, here)
                except RendezvousError as error:
                    logger.warning("%s", error)
            self._wait(self._stopped, ANSWER_PAUSE)


def check_group(address: str) -> str:
    """Returns the address of a group; raises ValueError with the reason if it is none.

    >>> check_group("239.255.0.1"), check_group("ff15::7a")
    ('239.255.0.1', 'ff15::7a')
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        found = None
    if found is None or not found.is_multicast:
        raise ValueError(f"{address!r} is no multicast address; take one from 239.255.0.0 on")
    return address
