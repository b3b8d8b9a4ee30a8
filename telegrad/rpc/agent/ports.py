"""The ports that an agent may listen on: a number, a range, or any that is free."""

from __future__ import annotations

from collections.abc import Sequence

from telegrad.transport import (
    HIGHEST_PORT,
)

FORMS = (
    "a number, a range such as range(29500, 29600) or '29500-29599', 0 for any that is free, or "
    "None to open none"
)
DIRECT_FORMS = (
    "True, False, 'local', 'tcp', or a range of ports such as range(29600, 29700) or '29600-29699'"
)


def check_ports(port: object) -> Sequence[int]:
    """Returns the ports to try, in order; 0 for any, also where none is to be opened.

    Args:
        port: The value of the option.

    >>> check_ports("29500-29502"), check_ports(range(29500, 29503)), check_ports(None)
    (range(29500, 29503), range(29500, 29503), (0,))

    Raises:
        TypeError: The value is none of those that the option takes.
        ValueError: A port is out of range, or the range is empty.
    """
    if port is None:
        return (0,)
    if isinstance(port, str | range):
        return _range(port, "port", FORMS)
    if isinstance(port, bool) or not isinstance(port, int):
        raise TypeError(f"RpcOptions.port must be {FORMS} (got {port!r})")
    if not 0 <= port <= HIGHEST_PORT:
        raise ValueError(f"RpcOptions.port must be from 0 to {HIGHEST_PORT} (got {port})")
    return (port,)


def check_direct(direct: object) -> Sequence[int]:
    """Returns the TCP ports to try for direct connections, in order; none if there are to be none.

    >>> check_direct(True), check_direct("local"), check_direct("29600-29602")
    ((0,), (), range(29600, 29603))

    Raises:
        TypeError: The value is none of those that the option takes.
        ValueError: A port is out of range, or the range is empty.
    """
    if isinstance(direct, bool) or direct in ("local", "tcp"):
        return (0,) if direct in (True, "tcp") else ()
    if isinstance(direct, str | range):
        return _range(direct, "direct", DIRECT_FORMS)
    raise TypeError(f"RpcOptions.direct must be {DIRECT_FORMS} (got {direct!r})")


def _range(said: str | range, name: str, forms: str) -> range:
    ports = said if isinstance(said, range) else _parsed(said, name, forms)
    if len(ports) == 0:
        raise ValueError(f"RpcOptions.{name}={said!r} has no port in it; write {forms}")
    if min(ports) < 1 or max(ports) > HIGHEST_PORT:
        raise ValueError(
            f"RpcOptions.{name}={said!r} goes beyond the ports that there are, 1 to {HIGHEST_PORT}"
        )
    return ports


def _parsed(text: str, name: str, forms: str) -> range:
    first, dash, last = text.partition("-")
    if not (first.strip().isdecimal() and (last.strip().isdecimal() or not dash)):
        raise ValueError(f"RpcOptions.{name} must be {forms} (got {text!r})")
    return range(int(first), int(last if dash else first) + 1)
