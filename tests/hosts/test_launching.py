"""`telegrad run` on several hosts, told nothing but where host 0 is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import pytest

from tests.conftest import Program, Programs
from tests.hosts.conftest import TOKEN, Launch, MakeHosts

# Each worker calls every worker, moves an array by lanes, and reduces over all.
MEET = """
import logging, sys
import numpy as np
from telegrad import collectives as dist, rpc
from telegrad.errors import TelegradError

logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
logging.getLogger("telegrad.transport.session.carriers").setLevel(logging.DEBUG)

def who():
    return rpc.get_worker_info().name

def double(array):
    return array * 2

try:
    rpc.init_rpc(options=rpc.RpcOptions(**eval(sys.argv[1] if sys.argv[1:] else "{}")))
except (TelegradError, OSError) as error:
    sys.exit(f"refused: {type(error).__name__}: {error}")
array = np.arange(2**18, dtype=np.float32)
for info in rpc.get_worker_infos():
    assert rpc.rpc_sync(info, who) == info.name
    assert (rpc.rpc_sync(info, double, (array,)) == array * 2).all()
dist.init_process_group()
ones = np.ones(2**18)
dist.all_reduce(ones)
assert (ones == dist.get_world_size()).all()
print("met", dist.get_world_size())
rpc.shutdown()
"""


# The doctor's view of every pair, on the worker with rank 0.
PAIRS = """
from telegrad import doctor, rpc

with rpc.init_rpc() as agent:
    if agent.get_worker_info().rank == 0:
        for pair in doctor.examine().pairs:
            print("pair:", pair.one, pair.other, pair.same_host, pair.transport)
"""


def dialled(output: str) -> dict[str, str]:
    """Returns who was connected to, and by which endpoint, of those that a host's workers dialled."""
    return dict(re.findall(r"connected to (\w+) by (grpcs?://\S+)", output))


def accepted(output: str) -> set[str]:
    """Returns how the connections came in that others opened: the transport and from where."""
    return set(re.findall(r"connected to \w+ by (grpcs? ipv[46]:\S+):\d+", output))


def check_met(programs: list[Program], size: int) -> str:
    """Waits for the launchers; returns what all wrote."""
    outputs = [program.wait() for program in programs]
    output = "\n".join(outputs)
    assert output.count(f"met {size}") == size, output
    return output


@pytest.mark.long
@pytest.mark.parametrize(
    ("workers", "family"),
    [
        pytest.param((1, 1), 4, id="two hosts"),
        pytest.param((1, 1), 6, id="IPv6 alone", marks=pytest.mark.long),
        pytest.param((1, 2, 1), 4, id="three hosts", marks=pytest.mark.long),
    ],
)
def test_all_call_each_other_encrypted_and_at_the_address_of_the_route(
    make_hosts: MakeHosts, launch: Launch, workers: tuple[int, ...], family: Literal[4, 6]
) -> None:
    """Also two workers of one host: they take its address, not loopback, and encrypt as well."""
    hosts = make_hosts(len(workers), family=family)
    output = check_met(launch(hosts, MEET, *workers), sum(workers))
    host_of = [f"worker{r}" for r in range(sum(workers))]
    where = {
        name: hosts.address(node)
        for node, names in enumerate(_shares(host_of, workers))
        for name in names
    }
    found = dialled(output)
    assert found.pop("coordinator") == f"grpcs://{_in_url(hosts.address(0))}:29500"
    assert len(found) >= 1  # of two each, one has dialled
    for name, endpoint in found.items():
        assert endpoint.startswith(f"grpcs://{_in_url(where[name])}:"), (name, endpoint)
    assert accepted(output) <= {f"grpcs ipv{family}:{_in_peer(each)}" for each in where.values()}
    assert "127.0.0.1" not in output
    assert "::1]:" not in output.replace(_in_url(hosts.address(0)), "")


def _shares(names: list[str], workers: tuple[int, ...]) -> list[list[str]]:
    starts = [sum(workers[:node]) for node in range(len(workers))]
    return [names[start : start + n] for start, n in zip(starts, workers, strict=True)]


@pytest.mark.long
def test_containers_of_one_machine_are_hosts_of_their_own(
    make_hosts: MakeHosts, launch: Launch
) -> None:
    """They share a boot id and a directory, so that one could open the other's Unix sockets."""
    hosts = make_hosts(2, one_machine=True)
    first, second = launch(hosts, PAIRS, 2, 1)
    pairs = set(re.findall(r"pair: (\w+ \w+) (\w+) (\w+)", first.wait()))
    assert pairs == {
        ("worker0 worker1", "True", "local"),
        ("worker0 worker2", "False", "tcps"),
        ("worker1 worker2", "False", "tcps"),
    }
    second.wait()


@pytest.mark.long
def test_of_two_interfaces_all_take_the_one_that_leads_to_the_coordinator(
    make_hosts: MakeHosts, launch: Launch
) -> None:
    hosts = make_hosts(2, networks=2)
    output = check_met(launch(hosts, MEET, 1, 1, master=hosts.address(0, network=1)), 2)
    wanted = {hosts.address(r, network=1) for r in range(2)}
    assert set(re.findall(r"10\.213\.\d+\.\d+", output)) == wanted


@pytest.mark.long
def test_who_has_no_route_to_host_0_goes_on_trying_and_says_why(
    make_hosts: MakeHosts, launch: Launch
) -> None:
    """The network of a machine that has just started may come up later."""
    hosts = make_hosts(2)
    hosts.ip("1", "route delete 10.213.0.0/24")
    programs = launch(hosts, MEET, 1, 1)
    programs[1].wait_for(f"waiting for node 0 at {hosts.address(0)}:29500")
    said = programs[1].output
    assert f"no route to {hosts.address(0)}" in said
    assert f"{hosts.address(1)} (eth0)" in said
    hosts.ip("1", f"route add 10.213.0.0/24 dev eth0 src {hosts.address(1)}")
    check_met(programs, 2)


def names_file(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
    return path


@pytest.mark.long
@pytest.mark.parametrize("own", ["10.213.0.1", "127.0.1.1"])
def test_a_host_name_is_dialled_where_it_leads_from_each_host(
    make_hosts: MakeHosts, launch: Launch, tmp_path: Path, own: str
) -> None:
    """Where it is 127.0.1.1 on host 0 itself, as Debian has it, `--bind` makes up for it."""
    hosts = make_hosts(2)
    names = [
        names_file(tmp_path / f"{r}", f"{own if r == 0 else hosts.address(0)} node0")
        for r in (0, 1)
    ]
    bind = ["--bind", "0.0.0.0"] if own == "127.0.1.1" else []
    output = check_met(
        launch(hosts, MEET, 1, 1, master="node0", arguments=[bind, []], names=names), 2
    )
    found = dialled(output)
    found.pop("coordinator")
    [name] = found
    assert found[name].startswith(f"grpcs://{hosts.address(int(name[-1]))}:")


@pytest.mark.long
def test_a_host_name_that_means_loopback_is_warned_of(
    make_hosts: MakeHosts, launch: Launch, tmp_path: Path
) -> None:
    hosts = make_hosts(2)
    names = [
        names_file(tmp_path / "0", "127.0.1.1 node0"),
        names_file(tmp_path / "1", f"{hosts.address(0)} node0"),
    ]
    first, second = launch(hosts, MEET, 1, 1, master="node0", names=names)
    first.wait_for("means 127.0.1.1 here, which leads nowhere from other hosts; name an address")
    assert f"{hosts.address(0)} (eth0)" in first.output
    second.wait_for("waiting for node 0 at node0:29500 (nobody listens at")


@pytest.mark.long
def test_slurm_tasks_meet_where_the_first_node_calls_itself_127_0_1_1(
    make_hosts: MakeHosts, programs: Programs, tmp_path: Path
) -> None:
    """Debian's `/etc/hosts` has it so; nobody could name another address, as Slurm names the nodes."""
    hosts = make_hosts(2)
    script = programs.script(MEET.replace("init_rpc(", "init_rpc(init_method='slurm://', "))
    started = []
    for rank, r in enumerate((0, 0, 1)):
        own = "127.0.1.1" if r == 0 else hosts.address(0)
        names = names_file(tmp_path / f"{rank}", f"{own} node0")
        of_slurm = {
            "SLURM_PROCID": str(rank),
            "SLURM_NTASKS": "3",
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "node[0-1]",
        }
        started.append(
            programs.start(
                [*hosts.on(r, names=names), "python", script],
                env={"TELEGRAD_TOKEN": TOKEN, "TMPDIR": str(tmp_path), **of_slurm},
            )
        )
    check_met(started, 3)


@pytest.mark.long
def test_a_host_with_ipv6_loopback_alone(make_hosts: MakeHosts, programs: Programs) -> None:
    hosts = make_hosts(1)
    hosts.ip("0", "addr del 127.0.0.1/8 dev lo")
    script = programs.script(MEET)
    run = ["python", "-m", "telegrad.launch.cli", "run", "--nproc-per-node", "2", script]
    env = {"TELEGRAD_TOKEN": TOKEN}
    check_met([programs.start([*hosts.on(0), *map(str, run)], env=env)], 2)
    check_met([programs.start([*hosts.on(0), "python", script], env=env)], 1)


@pytest.mark.long
def test_which_of_two_interfaces_a_name_of_loopback_stands_for_has_to_be_said(
    make_hosts: MakeHosts, launch: Launch, tmp_path: Path
) -> None:
    hosts = make_hosts(2, networks=2)
    names = [
        names_file(tmp_path / "0", "127.0.1.1 node0"),
        names_file(tmp_path / "1", f"{hosts.address(0)} node0"),
    ]
    bind: list[list[str]] = [["--bind", "0.0.0.0"], []]
    first, second = launch(hosts, MEET, 1, 1, master="node0", arguments=bind, names=names)
    said = first.wait(code=1)
    assert "'node0' means 127.0.1.1 here" in said
    assert (
        f"({hosts.address(0)} (eth0), {hosts.address(0, network=1)} (eth1)); name it in --bind"
        in said
    )
    second.wait_for("waiting for node 0 at node0:29500 (nobody listens at")
    bind[0][1] = hosts.address(0)
    [first] = launch(hosts, MEET, 1, nnodes=2, master="node0", arguments=bind, names=names)
    check_met([first, second], 2)


def _in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _in_peer(address: str) -> str:
    """As gRPC writes it."""
    return f"%5B{address}%5D" if ":" in address else address
