"""Why a host cannot come into a job: what its way to host 0 looks like from here, in words."""

from __future__ import annotations

import contextlib
import errno
import socket
from dataclasses import dataclass
from typing import Final, final

from telegrad.errors import AuthenticationError, RendezvousError, TelegradError
from telegrad.launch.doctor_host import Finding
from telegrad.transport import address_of, interfaces, is_loopback_address, route_to

__all__ = ["Way", "explain", "look_at_way"]

CONNECT_SECONDS = 3.0
OPEN: Final = "open"
UNKNOWN_NAME: Final = "unknown name"
REFUSED: Final = "refused"
SILENT: Final = "silent"
NO_ROUTE: Final = "no route"
OTHER: Final = "other"
ROUTE_ERRORS: Final = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL})


@final
@dataclass(frozen=True, slots=True)
class Way:
    """What a plain TCP connection to host 0 came to.

    Attributes:
        host: As the command line says.
        port: Likewise.
        ended: `open`, `unknown name`, `refused`, `silent`, `no route` or `other`.
        words: What the system says.
        address: What the name means here.
        source: The address of this host from which packets leave for it.
        own: The addresses of this host.
    """

    host: str
    port: int
    ended: str
    words: str = ""
    address: str = ""
    source: str = ""
    own: tuple[str, ...] = ()


def look_at_way(host: str, port: int) -> Way:
    """Connects to host 0 and hangs up; blocks for 3 s at most, and as long as the name service."""
    own = tuple(map(str, interfaces()))
    try:
        address = address_of(host)
    except OSError as error:
        return Way(host, port, UNKNOWN_NAME, str(error), own=own)
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
    return Way(host, port, ended, words, address, source, own)


def explain(error: Exception, way: Way) -> Finding:
    """Says why this host did not come in, from what it was told and what its way looks like.

    Args:
        error: With which it gave up.
        way: To host 0, looked at afterwards.
    """
    where = f"{way.host}:{way.port}"
    meant = f" ({way.address})" if way.address and way.address != way.host else ""
    own = ", ".join(way.own) or "none but loopback"
    if isinstance(error, AuthenticationError | RendezvousError):
        return _told(error)
    if way.ended == UNKNOWN_NAME:
        return Finding(
            f"host 0 was not found: {way.words}",
            f"name an address of host 0 in --master-addr, or add the name to /etc/hosts: echo "
            f"'ADDRESS {way.host}' | sudo tee -a /etc/hosts",
        )
    if way.address and is_loopback_address(way.address) and way.ended != OPEN:
        return Finding(
            f"--master-addr {way.host}{meant} leads to this host itself, and nobody listens at port "
            f"{way.port} here",
            "name an address of host 0 that other hosts reach (there: ip -brief address), the same "
            "on all hosts",
        )
    if way.ended == NO_ROUTE:
        return Finding(
            f"this host knows no way to host 0 at {where}{meant}: {way.words}; its addresses are {own}",
            "name an address of host 0 in a network that both are in, the same on all hosts; see: "
            f"ip route get {way.address}",
        )
    if way.ended == SILENT:
        return Finding(
            f"host 0 at {where}{meant} does not answer: packets leave this host from "
            f"{way.source or 'no address'} and nothing comes back; a firewall drops them, or that is "
            "no address of host 0",
            f"on host 0 look whether {way.address} is its own (ip -brief address) and let the port in, "
            f"for example: sudo ufw allow proto tcp from {way.source or 'any'} to any port {way.port}; "
            f"this host has {own}",
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


def _told(error: TelegradError) -> Finding:
    """Splits what host 0 has said, or this host found out, from how to mend it."""
    words, _, remedy = str(error).partition("; ")
    fallback = (
        "give all hosts the same token, certificates of the same authority, and the same version of "
        "telegrad"
    )
    return Finding(words, remedy or fallback)
