"""The addresses of this machine, and the one that leads to a peer.

Everything here may ask the name service, and so belongs in a thread of the caller's.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

V6_TABLE: Final = Path("/proc/net/if_inet6")
SIOCGIFADDR: Final = 0x8915  # the first IPv4 address of an interface
HIGHEST_PORT: Final = 65535
LOOPBACK: Final = "127.0.0.1"
LOOPBACK_V6: Final = "::1"
ANY_PORT: Final = 9  # of a datagram socket that sends nothing


@dataclass(frozen=True, slots=True)
class Interface:
    """One address of this machine, and the interface that has it."""

    name: str
    address: str

    def __str__(self) -> str:
        return f"{self.address} ({self.name})" if self.name else self.address


def split_host(text: str) -> str:
    """Returns a host without the brackets of a v6 address.

    >>> split_host("[::1]"), split_host("node3")
    ('::1', 'node3')
    """
    return text[1:-1] if text.startswith("[") and text.endswith("]") else text


def split_advertised(text: str) -> tuple[str, int]:
    """Returns the host and the port that others dial; 0 if only a host is given.

    >>> split_advertised("gate.example.org:4000"), split_advertised("[fd00::1]:4000")
    (('gate.example.org', 4000), ('fd00::1', 4000))
    >>> split_advertised("fd00::1"), split_advertised("[fd00::1]"), split_advertised("10.0.0.5")
    (('fd00::1', 0), ('fd00::1', 0), ('10.0.0.5', 0))

    Raises:
        ValueError: The text is neither a host nor a host and a port.
    """
    host, colon, digits = text.rpartition(":")
    port = 0
    if not colon or text.endswith("]") or (":" in host and not host.endswith("]")):
        host = text
    elif digits.isascii() and digits.isdecimal() and 1 <= int(digits) <= HIGHEST_PORT:
        port = int(digits)
    else:
        host = ""
    name = split_host(host)
    if not name or set(name) & set("[]/ ") or (":" in name and not is_number(name)):
        raise ValueError(
            f"{text!r} is no address that others can dial; write a host, 'host:port' or "
            f"'[v6]:port', with a port from 1 to {HIGHEST_PORT}"
        )
    return name, port


def is_localhost(host: str) -> bool:
    """Returns True for the name that means loopback, of either family.

    >>> is_localhost("LocalHost"), is_localhost("127.0.0.1")
    (True, False)
    """
    return host.lower().rstrip(".") == "localhost"


def is_number(host: str) -> bool:
    """Returns True for an address, and False for a name.

    >>> is_number("fe80::1%eth0"), is_number("node3")
    (True, False)
    """
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def is_everywhere(host: str) -> bool:
    """Returns True if an address stands for every address of the machine.

    >>> is_everywhere("::"), is_everywhere("0.0.0.0"), is_everywhere("10.0.0.5")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def is_loopback_address(address: str) -> bool:
    """Returns True if an address, as a number, leads only to this machine.

    >>> is_loopback_address("127.0.0.2"), is_loopback_address("::1"), is_loopback_address("::")
    (True, True, False)
    """
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def own_loopback() -> str:
    """Returns this machine's loopback address: ::1 where it has that one alone."""
    try:
        with socket.socket(socket.AF_INET) as probe:
            probe.bind((LOOPBACK, 0))
    except OSError:
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
            probe.bind((LOOPBACK_V6, 0))
            return LOOPBACK_V6
    return LOOPBACK


def address_of(host: str) -> str:
    """Returns the address of a host, as a number; an IPv4 one where it has both.

    >>> address_of("127.0.0.1"), address_of("[::1]")
    ('127.0.0.1', '::1')

    Raises:
        OSError: The name is not known; the message has the name.
    """
    name = split_host(host)
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        raise OSError(f"the host name {name!r} is not known here ({error})") from error
    addresses = [str(place[0]) for *_, place in found]
    return next((each for each in addresses if ":" not in each), addresses[0])


def route_to(host: str) -> str | None:
    """Returns the address from which packets leave for a host; None without a route.

    A datagram socket is connected, which looks the route up and sends nothing.

    >>> route_to("::1")
    '::1'
    """
    address = address_of(host)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, ANY_PORT))
            found = str(probe.getsockname()[0])
    except OSError:
        return None
    return None if is_everywhere(found) else found


def is_local(address: str) -> bool:
    """Returns True if an address, as a number, is one of this machine's; tries to bind to it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def interfaces() -> list[Interface]:
    """Returns the addresses by which other machines may reach this one: no loopback, no link-local.

    IPv4 addresses come first. Linux lists the interfaces; elsewhere the host's own name is looked
    up.
    """
    found = [*_v4(), *_v6()] or _by_name()
    return [each for each in dict.fromkeys(found) if _may_be_reached(each.address)]


def _v4() -> list[Interface]:
    found = []
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # the interface has no address
                request = struct.pack("256s", name.encode()[:15])
                answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
                found.append(Interface(name, socket.inet_ntoa(answer[20:24])))
    return found


def _v6() -> list[Interface]:
    try:
        lines = V6_TABLE.read_text().splitlines()
    except OSError:
        return []
    rows = [line.split() for line in lines]
    return [
        Interface(row[-1], str(ipaddress.IPv6Address(bytes.fromhex(row[0])))) for row in rows if row
    ]


def _by_name() -> list[Interface]:
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return [Interface("", str(place[0])) for *_, place in found]


def _may_be_reached(address: str) -> bool:
    number = ipaddress.ip_address(address.partition("%")[0])
    return not (number.is_loopback or number.is_link_local or number.is_unspecified)
