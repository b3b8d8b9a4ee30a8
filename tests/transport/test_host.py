"""The identity of a host, and jobs on a system that has little of what Linux has.

Two workers are on one host if boot and network namespace are the same.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from telegrad import doctor, rpc
from telegrad.transport import LocalTransport, find_local, host, read_host_id
from tests.conftest import ROOT, Programs

BOOT, OTHER_BOOT = "57f4c1d4-cb30-4ef8-9aac-8abefbbeee5e", "0b1f8a5e-93c5-4a0f-b1a4-3a3e6b0d4c11"
NAMESPACE, OTHER_NAMESPACE = "net:[4026531840]", "net:[4026532213]"

Move = Callable[[str | None, str | None], None]


@pytest.fixture
def move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Move:
    """Moves this process to a host with this boot id and network namespace; None: unreadable."""
    boot_id, namespace = tmp_path / "boot_id", tmp_path / "net"
    monkeypatch.setattr(host, "BOOT_ID", boot_id)
    monkeypatch.setattr(host, "NAMESPACE", namespace)

    def move(boot: str | None, net: str | None) -> None:
        boot_id.unlink(missing_ok=True)
        namespace.unlink(missing_ok=True)
        if boot is not None:
            boot_id.write_text(f"{boot}\n")
        if net is not None:
            namespace.symlink_to(net)

    return move


@pytest.mark.parametrize(
    ("boot", "net", "same"),
    [
        pytest.param(BOOT, NAMESPACE, True, id="another process of the host"),
        pytest.param(BOOT, OTHER_NAMESPACE, False, id="a container with a network of its own"),
        pytest.param(OTHER_BOOT, NAMESPACE, False, id="another machine"),
        pytest.param(BOOT, None, False, id="a process that cannot read its namespace"),
    ],
)
def test_a_unix_socket_is_reached_from_its_own_host_alone(
    move: Move, boot: str, net: str | None, same: bool
) -> None:
    move(BOOT, NAMESPACE)
    here = read_host_id()
    move(boot, net)
    assert (read_host_id() == here) is same
    assert LocalTransport().reaches(f"local://{here}/tmp/x/s") is same


def test_without_namespaces_to_read_the_boot_identifies_the_host(move: Move) -> None:
    move(BOOT, None)
    here = read_host_id()
    assert read_host_id() == here
    move(OTHER_BOOT, None)
    assert read_host_id() != here


def test_without_a_boot_id_there_is_no_local_transport(
    move: Move, caplog: pytest.LogCaptureFixture
) -> None:
    move(None, NAMESPACE)
    with pytest.raises(OSError, match="boot_id"):
        read_host_id()
    with caplog.at_level("INFO"):
        assert find_local(None) == []
    assert "workers on this host are reached over gRPC" in caplog.text


def test_the_doctor_knows_a_host_by_the_name_in_its_unix_sockets(tmp_path: Path) -> None:
    options = rpc.RpcOptions(
        bind=f"unix://{tempfile.gettempdir()}", token="a token that only the tests use"
    )
    place = f"file://{tmp_path / 'job'}?rank=0&world_size=1"
    with rpc.Agent("alone", init_method=place, options=options) as agent, agent.as_current():
        (worker,) = doctor.examine().workers
    (endpoint,) = worker.endpoints
    assert endpoint.startswith(f"local://{worker.host_id}/")
    assert worker.host_id == read_host_id()


# -- a system without the parts that only Linux has ---------------------------------------------

# An interpreter runs this file at its start, before it imports anything that asks for the parts.
TAKEN_AWAY = """
import os
import select

for name in dir(os):
    if name in ("memfd_create", "sched_getaffinity", "sched_setaffinity", "pidfd_open"):
        delattr(os, name)
    if name.startswith("eventfd"):
        delattr(os, name)
del select.epoll
"""
JOB = """
import os
import select

import numpy as np

import telegrad as tg
from telegrad import collectives as dist
from telegrad import dist_autograd, nn, optim, rpc
from telegrad.parallel import DistributedDataParallel

N = 2**20  # items: 8 MB


class Scale:
    def __init__(self, array):
        self.weight = tg.Tensor(array, requires_grad=True)

    def by(self, x):
        return (self.weight * x).sum()

    def value(self):
        return self.weight.data


def negated(array):
    return -array


assert not any(hasattr(os, name) for name in ("eventfd", "memfd_create", "sched_getaffinity"))
assert not hasattr(select, "epoll")
rpc.init_rpc()
dist.init_process_group()
n, rank = dist.get_world_size(), dist.get_rank()
peer = f"worker{(rank + 1) % n}"
array = np.arange(N, dtype=np.float64) + rank

assert np.array_equal(rpc.rpc_sync(peer, negated, args=(array,)), -array)
futures = [rpc.rpc_async(peer, negated, args=(np.full(N, i),)) for i in range(3)]
assert [future.wait()[-1] for future in futures] == [0, -1, -2]

held = rpc.remote(peer, Scale, args=(array,))
assert np.array_equal(held.rpc_sync().value(), array)
with dist_autograd.context() as context_id:
    x = tg.Tensor(np.full(N, 2.0), requires_grad=True)
    dist_autograd.backward(context_id, [held.rpc_sync().by(x)])
    assert np.array_equal(dist_autograd.get_gradients(context_id)[x], array)

total = np.full(N, float(rank))
dist.all_reduce(total)
assert np.array_equal(total, np.full(N, n * (n - 1) / 2))
assert [part[0] for part in dist.all_gather(array)] == list(range(n))

model = DistributedDataParallel(nn.Linear(1024, 1024, rng=np.random.default_rng(rank)))
optimizer = optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    optimizer.zero_grad()
    model(np.full((4, 1024), rank + step, np.float32)).sum().backward()
    optimizer.step()
own = next(iter(model.parameters())).data
assert all(np.array_equal(each, own) for each in dist.all_gather(own))
rpc.shutdown()
print("done")
"""
SHARED = (  # what the long test runs: calls, references, autograd, collectives, data parallelism
    "tests/rpc/verbs/test_api.py",
    "tests/rpc/verbs/test_call_forms.py",
    "tests/rpc/promises/carriers/test_grpc_calls.py",
    "tests/rpc/verbs/test_init.py",
    "tests/rpc/rref",
    "tests/autograd",
    "tests/dist_autograd",
    "tests/collectives",
    "tests/parallel",
)
LONG_SECONDS = 1500.0


@pytest.fixture
def without_linux(tmp_path: Path) -> dict[str, str]:
    """The environment of programs that find none of the parts which only Linux has."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(TAKEN_AWAY)
    return {"PYTHONPATH": os.pathsep.join(map(str, (site, ROOT)))}


@pytest.mark.parametrize("launched", [True, False])
@pytest.mark.few(1)
def test_a_job_runs_without_the_parts_that_only_linux_has(
    programs: Programs, without_linux: dict[str, str], launched: bool
) -> None:
    script = programs.script(JOB)
    if launched:
        command: list[str | Path] = ["telegrad", "run", "--nproc-per-node", "2", script]
        assert programs.run(command, env=without_linux, executed=True).count("done") == 2
    else:
        started = programs.ranks(script, 2, env=without_linux, executed=True)
        assert [each.wait() for each in started] == ["done\n"] * 2


@pytest.mark.long
@pytest.mark.timeout(LONG_SECONDS)
def test_the_fast_tests_pass_without_the_parts_that_only_linux_has(
    programs: Programs, without_linux: dict[str, str]
) -> None:
    options = ["-q", "-n", "2", "-m", "not long", "-p", "no:cacheprovider"]
    output = programs.run(
        ["python", "-m", "pytest", *options, *SHARED],
        env=without_linux,
        limit=LONG_SECONDS,
        executed=True,
    )
    assert "failed" not in output
