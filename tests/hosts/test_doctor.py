"""`telegrad doctor` between hosts: what it says of a healthy network, and of each sick one."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.conftest import Program, Programs
from tests.hosts.conftest import PORT, TOKEN, MakeHosts
from tests.hosts.namespaces import Hosts

pytestmark = pytest.mark.long

SECONDS = (
    "15"  # for all to come, and again for the pairs: what cannot come makes a test wait so long
)
LIMIT = 90.0

Run = Callable[..., list[Program]]


@pytest.fixture
def run(programs: Programs, tmp_path: Path) -> Run:
    """Starts the doctor on each of n hosts; `arguments` are by host."""

    def run(
        hosts: Hosts,
        n: int,
        *,
        arguments: Sequence[Sequence[str]] = (),
    ) -> list[Program]:
        started = []
        for node in range(n):
            words = ["python", "-m", "telegrad.launch.cli", "doctor", "--timeout", SECONDS]
            words += ["--nnodes", str(n), "--node-rank", str(node)]
            words += ["--master-addr", hosts.address(0), "--master-port", str(PORT)]
            words += arguments[node] if arguments else ()
            env = {
                "TELEGRAD_TOKEN": TOKEN,
                "TMPDIR": str(tmp_path),
                "OMP_NUM_THREADS": "1",
            }
            started.append(programs.start([*hosts.on(node), *words], env=env, limit=LIMIT))
        return started

    return run


def said(program: Program, *, code: int) -> str:
    """Returns what it wrote, in lines as long as they come; its own lines are broken anywhere."""
    return " ".join(program.wait(code=code).split())


@pytest.mark.parametrize("n", [2, 3])
def test_a_healthy_network(make_hosts: MakeHosts, run: Run, n: int) -> None:
    """No bandwidth is judged here by more than that it is there: this machine is busy."""
    hosts = make_hosts(n)
    for program in run(hosts, n):
        words = said(program, code=0)
        assert f"{n} workers on {n} hosts" in words
        assert "nothing is wrong" in words
        for r in range(n):
            assert f"grpcs://{hosts.address(r)}:" in words
        assert "encrypted" in words


def test_a_pair_that_is_cut_one_way(make_hosts: MakeHosts, run: Run) -> None:
    """Nothing can be opened from either side then, and the third host is not concerned."""
    hosts = make_hosts(3)
    hosts.cut_one_way(1, 2)
    for program in run(hosts, 3):
        words = said(program, code=1)
        for source, to in ((1, 2), (2, 1)):
            here, there = hosts.address(source), hosts.address(to)
            assert f"from node{source} ({here}) to node{to} ({there}) nothing gets through" in words
        assert f"grpcs://{hosts.address(2)}:" in words
        assert "2 problems" in words
        assert "RpcOptions(port=None)" in words
        assert "RpcOptions(port=" in words


def test_a_host_that_lets_nothing_in(make_hosts: MakeHosts, run: Run) -> None:
    """Told so, it is fine; else it is told what to do, and that its own connections carry calls."""
    hosts = make_hosts(3)
    hosts.let_nothing_in(2)
    for program in run(hosts, 3):
        words = said(program, code=1)
        assert f"to node2 ({hosts.address(2)}) nothing gets through" in words
        assert "1 problem " in words
        assert "over what worker2 has opened itself" in words
        assert "RpcOptions(port=None)" in words
    for program in run(hosts, 3, arguments=[[], [], ["--no-listen"]]):
        assert "nothing is wrong" in said(program, code=0)


def test_a_slow_link(make_hosts: MakeHosts, run: Run) -> None:
    hosts = make_hosts(3)
    hosts.limit(2, "8mbit")
    for program in run(hosts, 3):
        words = said(program, code=1)
        assert "1 problem " in words
        moves = re.search(rf"node2 \({hosts.address(2)}\) moves ([0-9.]+) MB/s at best", words)
        assert moves, words
        assert float(moves[1]) <= 1.1  # 8 Mbit/s
        assert "there is no other address to choose" in words
        assert "look at cable, switch" in words


def test_the_port_of_host_0_is_blocked(make_hosts: MakeHosts, run: Run) -> None:
    hosts = make_hosts(2)
    hosts.let_nothing_in(0, PORT)
    first, second = run(hosts, 2)
    words = said(second, code=1)
    assert f"host 0 at {hosts.address(0)}:{PORT} does not answer" in words
    assert f"packets leave this host from {hosts.address(1)}" in words
    words = said(first, code=1)
    assert "missing after 15 s: node 1" in words
    assert f"{PORT}/tcp" in words


def test_a_host_without_a_route(make_hosts: MakeHosts, run: Run) -> None:
    hosts = make_hosts(2)
    hosts.ip("1", "route delete 10.213.0.0/24")
    first, second = run(hosts, 2)
    words = said(second, code=1)
    assert f"this host knows no way to host 0 at {hosts.address(0)}:{PORT}" in words
    assert f"its addresses are {hosts.address(1)} (eth0)" in words
    said(first, code=1)
