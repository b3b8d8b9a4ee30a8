"""Compares ways to encrypt a TCP connection with the standard library: echoes of 64 MiB and of 64 bytes.

    python benchmarks/encryption.py [--rounds 15] [--only WORD ...]

Two processes on loopback; each direction of the big echo has a connection of its own, as nothing
else is under way. Prints a Markdown table: the median and the least time there and back, and the
processor time of both processes together. docs/internals/encryption.md has what was found.
"""

from __future__ import annotations

import argparse
import os
import resource
import select
import socket
import ssl
import statistics
import time
from collections.abc import Callable
from typing import Final, Protocol

from machine import machine, say

from telegrad.transport import Tls, self_signed_tls
from telegrad.transport.sockets.message_socket import DirectSocket
from telegrad.transport.sockets.tls_socket import TlsSocket

SIZE: Final = 64 * 2**20
SMALL: Final = 64
SMALL_ECHOES: Final = 2000
MIB: Final = 2**20


class End(Protocol):
    """One end of a connection."""

    def send(self, data: memoryview) -> None:
        """Sends bytes, all of them."""

    def fill(self, place: memoryview) -> None:
        """Fills a place with the next bytes."""


Make = Callable[[socket.socket, bool, Tls], End]


class Plain:
    """A socket that blocks."""

    def __init__(self, connected: socket.socket, listens: bool, tls: Tls) -> None:
        self.socket = connected

    def send(self, data: memoryview) -> None:
        """Sends bytes, all of them."""
        self.socket.sendall(data)

    def fill(self, place: memoryview) -> None:
        """Fills a place with the next bytes."""
        while place:
            place = place[self.socket.recv_into(place, len(place), socket.MSG_WAITALL) :]


class Direct:
    """telegrad's own: a socket that does not block, and `poll`."""

    def __init__(self, connected: socket.socket, listens: bool, tls: Tls) -> None:
        connected.setblocking(False)
        self.below = DirectSocket(connected)

    def send(self, data: memoryview) -> None:
        """Sends bytes, all of them."""
        for at in range(0, len(data), MIB):
            self.below.send_all(data[at : at + MIB])

    def fill(self, place: memoryview) -> None:
        """Fills a place with the next bytes."""
        for at in range(0, len(place), MIB):
            self.below.fill(place[at : at + MIB])


class DirectTls(Direct):
    """The same under TLS."""

    def __init__(self, connected: socket.socket, listens: bool, tls: Tls) -> None:
        context = tls.listening if listens else tls.dialling
        secured = TlsSocket(connected, context, shown=tls.binding if listens else b"")
        while True:
            try:
                secured.shake_hands()
                break
            except ssl.SSLWantReadError:
                select.select([secured], [], [])
        self.below = DirectSocket(secured, held=secured.held)


def wrapped(write: int, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> Make:
    """Returns what makes a wrapped socket that blocks, and is given so many bytes at once."""

    class Wrapped:
        def __init__(self, connected: socket.socket, listens: bool, tls: Tls) -> None:
            context = contexts(tls, version)[0 if listens else 1]
            self.socket = context.wrap_socket(connected, server_side=listens)

        def send(self, data: memoryview) -> None:
            for at in range(0, len(data), write):
                self.socket.sendall(data[at : at + write])

        def fill(self, place: memoryview) -> None:
            while place:
                place = place[self.socket.recv_into(place) :]

    return Wrapped


def in_memory(size: int, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> Make:
    """Returns what makes an SSL object over memory, fed with so many bytes at once."""

    class InMemory:
        def __init__(self, connected: socket.socket, listens: bool, tls: Tls) -> None:
            context = contexts(tls, version)[0 if listens else 1]
            self.socket, self.scratch = connected, memoryview(bytearray(size))
            self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            self.tls = context.wrap_bio(self.incoming, self.outgoing, server_side=listens)
            done = False
            while not done:
                try:
                    self.tls.do_handshake()
                    done = True
                except ssl.SSLWantReadError:
                    pass
                self.socket.sendall(self.outgoing.read())
                if not done:
                    self._receive()

        def _receive(self) -> None:
            self.incoming.write(self.scratch[: self.socket.recv_into(self.scratch)])

        def send(self, data: memoryview) -> None:
            for at in range(0, len(data), size):
                self.tls.write(data[at : at + size])
                self.socket.sendall(self.outgoing.read())

        def fill(self, place: memoryview) -> None:
            while place:
                try:
                    place = place[self.tls.read(len(place), place) :]
                except ssl.SSLWantReadError:
                    self._receive()

    return InMemory


def contexts(tls: Tls, version: ssl.TLSVersion) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Returns the contexts of a listener and a dialler for a version of TLS."""
    listening, dialling = tls.listening, tls.dialling
    if version is ssl.TLSVersion.TLSv1_2:
        listening.minimum_version = listening.maximum_version = version
        listening.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    return listening, dialling


WAYS: Final[dict[str, Make]] = {
    "plain, blocking": Plain,
    "plain, `poll` (telegrad)": Direct,
    "TLS 1.3, wrapped, writes of 16 KiB": wrapped(2**14),
    "TLS 1.3, wrapped, writes of 1 MiB": wrapped(2**20),
    "TLS 1.3, wrapped, `poll` (telegrad)": DirectTls,
    "TLS 1.3, in memory, 64 KiB": in_memory(2**16),
    "TLS 1.3, in memory, 256 KiB": in_memory(2**18),
    "TLS 1.3, in memory, 1 MiB": in_memory(2**20),
    "TLS 1.2 with AES-128, wrapped, 1 MiB": wrapped(2**20, ssl.TLSVersion.TLSv1_2),
    "TLS 1.2 with AES-128, in memory, 256 KiB": in_memory(2**18, ssl.TLSVersion.TLSv1_2),
}


def echoes(make: Make, rounds: int) -> tuple[list[float], float, float]:
    """Returns the seconds of big echoes, of one small echo, and of the processors for a big one."""
    listener = socket.create_server(("127.0.0.1", 0))
    tls = self_signed_tls()
    place = memoryview(bytearray(SIZE))
    child = os.fork()
    if child == 0:
        there, back = (made(make, listener.accept()[0], True, tls) for _ in range(2))
        for _ in range(SMALL_ECHOES):
            there.fill(place[:SMALL])
            back.send(place[:SMALL])
        for _ in range(rounds):
            there.fill(place)
            back.send(place)
        os._exit(0)
    address = listener.getsockname()
    there, back = (made(make, socket.create_connection(address), False, tls) for _ in range(2))
    data = memoryview(os.urandom(MIB) * (SIZE // MIB))
    began = time.perf_counter()
    for _ in range(SMALL_ECHOES):
        there.send(data[:SMALL])
        back.fill(place[:SMALL])
    small = (time.perf_counter() - began) / SMALL_ECHOES
    times, used = [], processors()
    for _ in range(rounds):
        began = time.perf_counter()
        there.send(data)
        back.fill(place)
        times.append(time.perf_counter() - began)
    assert place == data
    os.waitpid(child, 0)
    return times, small, (processors() - used) / rounds


def made(make: Make, connected: socket.socket, listens: bool, tls: Tls) -> End:
    """Returns one end of a connection."""
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return make(connected, listens, tls)


def processors() -> float:
    """Returns the processor time of this process and of those that have ended, in seconds."""
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(use.ru_utime + use.ru_stime for use in map(resource.getrusage, who))


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", nargs="*", default=[""], help="words in the names of ways")
    told = parser.parse_args()
    say(f"{machine()}, {ssl.OPENSSL_VERSION}")
    say("| | 64 MiB, ms | least | processors, ms | 64 bytes, us |")
    say("|---|--:|--:|--:|--:|")
    for name, make in WAYS.items():
        if any(word in name for word in told.only):
            times, small, used = echoes(make, told.rounds)
            median, least = statistics.median(times), min(times)
            ms = " | ".join(f"{1e3 * each:.0f}" for each in (median, least, used))
            say(f"| {name} | {ms} | {1e6 * small:.0f} |")


if __name__ == "__main__":
    main()
