"""Workers on several hosts that find each other by multicast."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from tests.conftest import Program, Programs
from tests.hosts.conftest import TOKEN, MakeHosts
from tests.hosts.namespaces import Hosts
from tests.rendezvous.test_file_init import PROGRAM

GROUPS = {4: "239.255.0.1:29500", 6: "[ff15::7e1e]:29500"}


def start(
    programs: Programs, hosts: Hosts, r: int, url: str, *, rank: int | None = None
) -> Program:
    words: list[str | Path] = [
        *hosts.python(r),
        programs.script(PROGRAM),
        url,
        str(r if rank is None else rank),
    ]
    return programs.start(words, env={"TELEGRAD_TOKEN": TOKEN})


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.long
def test_workers_of_two_hosts_meet(
    make_hosts: MakeHosts, programs: Programs, family: Literal[4, 6]
) -> None:
    hosts = make_hosts(2, family=family)
    started = [start(programs, hosts, r, f"multicast://{GROUPS[family]}") for r in (1, 0)]
    for program in started:
        assert "value 42" in program.wait()


@pytest.mark.long
def test_the_interface_chooses_the_network(make_hosts: MakeHosts, programs: Programs) -> None:
    hosts = make_hosts(2, networks=2)
    url = f"multicast://{GROUPS[4]}?interface="
    started = [start(programs, hosts, r, f"{url}eth1") for r in (1, 0)]
    for program in started:
        assert "value 42" in program.wait()
    alone = start(programs, hosts, 0, f"multicast://{GROUPS[4]}")
    output = alone.wait(code=1)
    assert "this machine has no route to it; write '?interface='" in output
    assert hosts.address(0, 1) in output


@pytest.mark.long
def test_a_host_whose_interface_is_down_is_told_so(
    make_hosts: MakeHosts, programs: Programs
) -> None:
    hosts = make_hosts(2)
    hosts.ip("1", "link set eth0 down")
    output = start(programs, hosts, 1, f"multicast://{GROUPS[4]}?interface=eth0").wait(code=1)
    assert "multicast group 239.255.0.1:29500 through eth0 cannot be used" in output
