"""Where a job is, from the environment or an address."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import pytest

from telegrad.errors import RendezvousError
from telegrad.rendezvous import JobAddress, parse_init_method, port_in_use

ENVIRON = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
LAUNCHED = {**ENVIRON, "RANK": "0", "TELEGRAD_JOB": "train-1", "TELEGRAD_NAME": "worker0"}


@pytest.mark.parametrize("init_method", ["env://", None])
def test_environment(init_method: str | None) -> None:
    assert parse_init_method(init_method, environ=ENVIRON) == JobAddress(
        host="10.0.0.1", port=29500, rank=1, world_size=3, job="default", hosts_store=False
    )


def test_rank_0_hosts_unless_the_launcher_does() -> None:
    assert parse_init_method("env://", environ={**ENVIRON, "RANK": "0"}).hosts_store
    address = parse_init_method("env://", environ=LAUNCHED)
    assert not address.hosts_store
    assert address.job == "train-1"
    assert address.name == "worker0"
    assert address.coordinator_endpoint == "grpc://10.0.0.1:29500"


def test_arguments_override_the_environment() -> None:
    address = parse_init_method("env://", rank=0, world_size=2, environ=ENVIRON)
    assert (address.rank, address.world_size) == (0, 2)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        (
            {"WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1"},
            "WORLD_SIZE, MASTER_ADDR, MASTER_PORT are set and RANK is not; set RANK to this",
        ),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is set and RANK is not"),
        ({"MASTER_ADDR": "h"}, "MASTER_ADDR is set and RANK is not"),
    ],
)
def test_a_rank_that_was_forgotten_makes_no_job_of_one(environ: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_init_method(None, environ=environ)


def test_a_rank_may_be_an_argument_beside_the_environment() -> None:
    environ = {name: value for name, value in ENVIRON.items() if name != "RANK"}
    assert parse_init_method(None, rank=2, environ=environ).rank == 2
    with pytest.raises(ValueError, match="MASTER_PORT not set"):
        parse_init_method(None, rank=2, environ={"WORLD_SIZE": "3", "MASTER_ADDR": "h"})


def test_who_says_that_it_is_alone_is_alone() -> None:
    environ = {name: value for name, value in ENVIRON.items() if name != "RANK"}
    assert parse_init_method(None, rank=0, world_size=1, environ=environ).world_size == 1
    assert parse_init_method(None, world_size=1, environ=environ).host == "127.0.0.1"
    assert parse_init_method(None, environ={"WORLD_SIZE": "1"}).world_size == 1


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        (
            {"SLURM_PROCID": "1", "SLURM_NTASKS": "4"},
            "Slurm started this process as one of 4 (SLURM_PROCID=1, SLURM_NTASKS=4), and RANK",
        ),
        (
            {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "2"},
            "start sh -c 'RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_STEP_NUM_TASKS MASTER_ADDR=HOST",
        ),
        (
            {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"},
            "sh -c 'RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE",
        ),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "MPI started this process as one of 2 (PMI_RANK=0"),
        (
            {"MV2_COMM_WORLD_RANK": "0", "MV2_COMM_WORLD_SIZE": "2"},
            "MVAPICH started this process as one of 2 (MV2_COMM_WORLD_RANK=0, MV2_COMM_WORLD_SIZE",
        ),
        (
            {"FLUX_TASK_RANK": "0", "FLUX_JOB_SIZE": "2"},
            "sh -c 'RANK=$FLUX_TASK_RANK WORLD_SIZE=$FLUX_JOB_SIZE MASTER_ADDR=HOST",
        ),
        ({"PMIX_RANK": "1"}, "PMIx started this process as one of several (PMIX_RANK=1), and"),
        ({"PMIX_RANK": "1"}, "WORLD_SIZE=SIZE MASTER_ADDR=HOST MASTER_PORT=29500 exec python"),
        ({"PMIX_RANK": "1"}, "host of rank 0 and SIZE the number of processes; for a job of one"),
        ({"PALS_RANKID": "1"}, "sh -c 'RANK=$PALS_RANKID WORLD_SIZE=SIZE MASTER_ADDR=HOST"),
        ({"PBS_VNODENUM": "1"}, "PBS started this process as one of several (PBS_VNODENUM=1), and"),
        (
            {"JSM_NAMESPACE_RANK": "0", "JSM_NAMESPACE_SIZE": "2"},
            "RANK=$JSM_NAMESPACE_RANK WORLD_SIZE=$JSM_NAMESPACE_SIZE MASTER_ADDR=HOST",
        ),
        ({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2"}, "Horovod started this process as one of 2"),
        (
            {"AWS_BATCH_JOB_NODE_INDEX": "0", "AWS_BATCH_JOB_NUM_NODES": "2"},
            "WORLD_SIZE=$AWS_BATCH_JOB_NUM_NODES MASTER_ADDR=HOST MASTER_PORT=29500 exec python",
        ),
        (
            {"LWS_WORKER_INDEX": "1", "LWS_GROUP_SIZE": "4"},
            "where HOST is the value of LWS_LEADER_ADDRESS; for a job of one",
        ),
    ],
)
def test_a_process_that_another_launcher_started_makes_no_job_of_one(
    environ: dict[str, str], words: str
) -> None:
    for rank in (None, 0):
        with pytest.raises(ValueError, match=re.escape(words)):
            parse_init_method(None, rank=rank, environ=environ)
    assert parse_init_method(None, rank=0, world_size=1, environ=environ).world_size == 1
    assert parse_init_method(None, environ={**environ, **ENVIRON}).world_size == 3
    sizes = ("SIZE", "TASKS", "NUM_NODES")
    alone = {name: "1" if any(size in name for size in sizes) else "0" for name in environ}
    assert parse_init_method(None, environ=alone).world_size == 1


@pytest.mark.parametrize("index", ["0", "3"])
def test_a_pod_of_an_indexed_job_makes_no_job_of_one(index: str) -> None:
    """Nothing tells the pod of index 0 that there are others."""
    environ = {"JOB_COMPLETION_INDEX": index}
    words = (
        f"Kubernetes started this process as one of several (JOB_COMPLETION_INDEX={index}), and "
        "RANK is not set, so that each would be a job of its own; start sh -c "
        "'RANK=$JOB_COMPLETION_INDEX WORLD_SIZE=SIZE MASTER_ADDR=HOST MASTER_PORT=29500 exec "
        "python SCRIPT' instead, where HOST is the Job's name with -0 and its headless service "
        "(JOB-0.SERVICE) and SIZE the number of processes; for a job of one give rank=0, "
        "world_size=1"
    )
    with pytest.raises(ValueError, match=re.escape(words)):
        parse_init_method(None, environ=environ)
    assert parse_init_method(None, rank=0, world_size=1, environ=environ).world_size == 1
    assert parse_init_method(None, environ={**environ, **ENVIRON}).world_size == 3


@pytest.mark.parametrize("lines", [None, 0, 1, 2])
def test_pbs_gives_places_and_no_ranks(tmp_path: Path, lines: int | None) -> None:
    nodes = tmp_path / "nodes"
    if lines is not None:
        nodes.write_text("node1\n" * lines)
    environ = {"PBS_JOBID": "1", "PBS_NODEFILE": str(nodes)}
    if lines == 1:
        assert parse_init_method(None, environ=environ).world_size == 1
        return
    words = "start pbsdsh -- sh -c 'RANK=$PBS_VNODENUM WORLD_SIZE=SIZE MASTER_ADDR=HOST"
    with pytest.raises(ValueError, match=re.escape(words)):
        parse_init_method(None, environ=environ)
    assert parse_init_method(None, rank=0, world_size=1, environ=environ).world_size == 1
    assert parse_init_method(None, environ={**environ, **ENVIRON}).world_size == 3


def test_the_port_that_torchrun_has_is_named_as_such() -> None:
    environ = {**ENVIRON, "RANK": "0", "TORCHELASTIC_RUN_ID": "none"}
    address = parse_init_method(None, environ=environ)
    in_use, denied = OSError(errno.EADDRINUSE, "in use"), OSError(errno.EACCES, "denied")
    found = port_in_use(address, in_use, environ)
    assert isinstance(found, RendezvousError)
    for words in ("torchrun's own store", "by telegrad run", 'init_method=f"tcp://{os.environ'):
        assert words in str(found)
    assert port_in_use(address, denied, environ) is None
    assert port_in_use(address, in_use, ENVIRON) is None
    assert port_in_use(address, in_use, {**environ, "MASTER_PORT": "1"}) is None


@pytest.mark.parametrize(
    "beside",
    [
        {},
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "1"},
    ],
)
def test_rank_0_of_pmix_may_be_alone(beside: dict[str, str]) -> None:
    environ = {"PMIX_RANK": "0", **beside}
    assert parse_init_method(None, environ=environ).world_size == 1


def test_everything_missing_is_named_at_once() -> None:
    with pytest.raises(ValueError, match="RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT not set"):
        parse_init_method("env://", environ={})


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"RANK": "one"}, r"RANK must be an integer \(got 'one'\)"),
        ({"WORLD_SIZE": ""}, "WORLD_SIZE not set"),
        ({"WORLD_SIZE": "0"}, r"world_size must be at least 1 \(got 0\)"),
        ({"RANK": "3"}, "rank 3 is out of range for a world size of 3; ranks go from 0 to 2"),
        ({"RANK": "-1"}, "rank -1 is out of range"),
        ({"MASTER_PORT": "70000"}, r"MASTER_PORT must be from 1 to 65535 \(got 70000\)"),
        ({"MASTER_PORT": "0"}, r"MASTER_PORT must be from 1 to 65535 \(got 0\)"),
        ({"MASTER_PORT": "x", "RANK": "y"}, "RANK must .*MASTER_PORT must be an integer"),
        ({"TELEGRAD_JOB": "a job"}, "job name 'a job' has ' '"),
    ],
)
def test_malformed_environment(changed: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_init_method("env://", environ={**ENVIRON, **changed})


def test_address() -> None:
    address = parse_init_method("tcp://node7:4000?rank=0&world_size=2&job=mine")
    assert address.hosts_store
    assert address.job == "mine"
    assert address.coordinator_endpoint == "grpc://node7:4000"
    assert parse_init_method("tcp://[::1]:1", rank=0, world_size=1).coordinator_endpoint == (
        "grpc://[::1]:1"
    )


def test_address_of_the_launcher_does_not_host() -> None:
    address = parse_init_method("tcp://10.0.0.1:29500", rank=0, world_size=3, environ=LAUNCHED)
    assert not address.hosts_store
    assert address.job == "train-1"
    assert parse_init_method("tcp://b:1", rank=0, world_size=3, environ=LAUNCHED).hosts_store


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("tcp://", "names no host"),
        ("tcp://a", "names no port"),
        ("tcp://a:0", "is 0, which no other worker can dial"),
        ("tcp://a:99999", "is not a number from 1 to 65535"),
        ("tcp://a:b", "is not a number from 1 to 65535"),
        ("tcp://a:1/path", "more than a host and a port"),
        ("tcp://a:1", "rank, world_size not set.*init_rpc"),
        ("tcp://a:1?rank=0&world_size=1&size=3", "'size' is not known"),
        ("https://x", "is not known; write 'env://', 'tcp://host:port', 'file:///path'"),
        ("file://run1/x?rank=0&world_size=1", "is relative; write it in full.*file:///.../run1/x'"),
        ("file:///?rank=0&world_size=1", "names no file"),
        ("file:///runs/?rank=0&world_size=1", "names no file; write 'file:///path', for instance"),
        ("file:///x#y", "more than a path"),
        ("file:///x", "rank, world_size not set of init_method 'file:///x'; give them to init_rpc"),
        ("file:///x?rank=0&world_size=1&port=3", "'port' is not known"),
        ("env://x", "write 'env://' alone"),
    ],
)
def test_malformed_addresses(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_init_method(url)


def test_file() -> None:
    address = parse_init_method("file:///runs/a%20b?rank=0&world_size=2&job=mine", environ=LAUNCHED)
    assert (address.file, address.job, address.hosts_store) == ("/runs/a b", "mine", True)
    assert address.coordinator_endpoint == ""
    address = parse_init_method("file://localhost/runs/x", rank=1, world_size=2)
    assert (address.file, address.rank, address.hosts_store) == ("/runs/x", 1, False)


def test_alone() -> None:
    address = parse_init_method(None, environ={})
    assert (address.host, address.port, address.world_size) == ("127.0.0.1", 0, 1)
    assert address.hosts_store
    with pytest.raises(ValueError, match="needs an address to meet the others at"):
        parse_init_method(None, rank=1, world_size=2)


@pytest.mark.parametrize("rank", [True, 0.5, "0"])
def test_rank_is_an_int(rank: int) -> None:
    with pytest.raises(ValueError, match="rank must be an int"):
        parse_init_method("tcp://a:1", rank=rank, world_size=2)


@pytest.mark.parametrize("url", ["tcp://h:1?late=1", "file:///tmp/job?late=1&job=j"])
def test_who_comes_late_has_no_place_yet(url: str) -> None:
    address = parse_init_method(url)
    assert address.late
    assert not address.hosts_store
    assert not parse_init_method(url.replace("late=1", "late=0"), rank=0, world_size=1).late


@pytest.mark.parametrize("place", [{"rank": 1}, {"world_size": 2}, {"rank": 0, "world_size": 1}])
def test_who_comes_late_gives_no_place(place: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="who comes late gives no rank and no world_size"):
        parse_init_method(
            "tcp://h:1?late=1", rank=place.get("rank"), world_size=place.get("world_size")
        )
    query = "&".join(f"{name}={value}" for name, value in place.items())
    with pytest.raises(ValueError, match="who comes late gives no rank"):
        parse_init_method(f"tcp://h:1?late=1&{query}")
    with pytest.raises(ValueError, match="late must be 0 or 1"):
        parse_init_method("tcp://h:1?late=yes")
