"""What the tests between hosts build on: cuts cut, filters filter, and skips have a reason."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Literal

import pytest

from tests.conftest import Programs
from tests.hosts.conftest import MakeHosts
from tests.hosts.namespaces import Hosts

ENOUGH, IN_VAIN = (
    10.0,
    0.3,
)  # seconds in which a connection has to come about, and in which it must not
SERVER = """
import signal, socket, sys
host, *ports = sys.argv[1:]
family = socket.AF_INET6 if ":" in host else socket.AF_INET
listening = [socket.create_server((host, int(port)), family=family) for port in ports]
print("listening")
signal.pause()
"""
CLIENT = """
import socket, sys
host, port, seconds = sys.argv[1:]
socket.create_connection((host, int(port)), float(seconds))
"""

Change = Callable[[Hosts], None]

IN_THE_WAY: dict[str, tuple[Change, Change]] = {
    "link down": (lambda hosts: hosts.cut(0), lambda hosts: hosts.heal(0)),
    "one way there": (
        lambda hosts: hosts.cut_one_way(1, 0),
        lambda hosts: hosts.heal_one_way(1, 0),
    ),
    "one way back": (
        lambda hosts: hosts.cut_one_way(0, 1),
        lambda hosts: hosts.heal_one_way(0, 1),
    ),
    "blackhole": (lambda hosts: hosts.blackhole(0, 1), lambda hosts: hosts.heal_blackhole(0, 1)),
    "loss of all": (lambda hosts: hosts.lose(0, 0.999999), lambda hosts: hosts.unfilter(0)),
    "nothing in": (lambda hosts: hosts.let_nothing_in(0), lambda hosts: hosts.unfilter(0)),
}


def connects(hosts: Hosts, seconds: float, port: int = 5001) -> bool:
    """Tells whether host 1 can open a connection to host 0."""
    words = [*hosts.python(1), "-c", CLIENT, hosts.address(0), str(port), str(seconds)]
    return subprocess.run(words, capture_output=True).returncode == 0


@pytest.mark.long
@pytest.mark.parametrize("family", [4, 6])
def test_cuts_and_filters(make_hosts: MakeHosts, programs: Programs, family: Literal[4, 6]) -> None:
    hosts = make_hosts(2, family=family)
    words = [*hosts.python(0), "-c", SERVER, hosts.address(0), "5001", "5002"]
    programs.start(words).wait_for("listening")
    assert connects(hosts, ENOUGH)
    for name, (put, take_away) in IN_THE_WAY.items():
        put(hosts)
        assert not connects(hosts, IN_VAIN), name
        take_away(hosts)
        assert connects(hosts, ENOUGH), name
    hosts.let_nothing_in(0, 5001)
    assert not connects(hosts, IN_VAIN)
    assert connects(hosts, ENOUGH, 5002)


def test_only_what_cannot_be_had_here_is_skipped() -> None:
    with pytest.raises(pytest.skip.Exception, match="sh -c .*: Operation not permitted"):
        Hosts.run(["sh", "-c", "echo Operation not permitted >&2; exit 1"])
    with pytest.raises(AssertionError, match="no such device"):
        Hosts.run(["sh", "-c", "echo no such device >&2; exit 1"])
