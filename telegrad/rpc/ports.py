"""Which ports an agent may listen on: a number, a range, or whichever is free."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["HIGHEST_PORT", "check_ports"]

HIGHEST_PORT = 65535
FORMS = "a number, a range such as range(29500, 29600) or '29500-29599', or 0 for any that is free"


def check_ports(port: object) -> Sequence[int]:
    """Returns the ports to try, in order.

    >>> check_ports("29500-29502"), check_ports(range(29500, 29503)), check_ports(0)
    (range(29500, 29503), range(29500, 29503), (0,))

    Raises:
        TypeError: It is no number and no range.
        ValueError: It is out of the range of ports, or has none.
    """
    if isinstance(port, str):
        return _checked(_parsed(port), port)
    if isinstance(port, range):
        return _checked(port, port)
    if isinstance(port, bool) or not isinstance(port, int):
        raise TypeError(f"RpcOptions.port must be {FORMS} (got {port!r})")
    if not 0 <= port <= HIGHEST_PORT:
        raise ValueError(f"RpcOptions.port must be from 0 to {HIGHEST_PORT} (got {port})")
    return (port,)


def _parsed(text: str) -> range:
    first, dash, last = text.partition("-")
    if not (first.strip().isdecimal() and (last.strip().isdecimal() or not dash)):
        raise ValueError(f"RpcOptions.port must be {FORMS} (got {text!r})")
    return range(int(first), int(last if dash else first) + 1)


def _checked(ports: range, said: object) -> range:
    if len(ports) == 0:
        raise ValueError(f"RpcOptions.port={said!r} has no port in it; write {FORMS}")
    if min(ports) < 1 or max(ports) > HIGHEST_PORT:
        raise ValueError(
            f"RpcOptions.port={said!r} goes beyond the ports that there are, 1 to {HIGHEST_PORT}"
        )
    return ports
