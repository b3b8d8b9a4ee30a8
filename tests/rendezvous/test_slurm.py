"""Where a job is that `srun` started."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telegrad.rendezvous import parse_init_method
from telegrad.rendezvous.slurm import FIRST_PORT, PORTS, expand_nodes

ENVIRON = {
    "SLURM_PROCID": "2",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_JOB_ID": "41234",
    "SLURM_STEP_ID": "1",
    "SLURM_JOB_NODELIST": "node[1-3,7]",
    "SLURM_STEP_NODELIST": "node[3,7]",
}


def test_the_step_says_more_than_the_job() -> None:
    address = parse_init_method("slurm://", environ=ENVIRON)
    assert (address.rank, address.world_size, address.host) == (2, 3, "node3")
    assert address.job == "slurm-41234.1"
    assert not address.hosts_store
    of_job = {name: value for name, value in ENVIRON.items() if "STEP" not in name}
    assert address.several_hosts
    address = parse_init_method("slurm://", environ={**of_job, "SLURM_PROCID": "0"})
    assert (address.rank, address.world_size, address.host) == (0, 8, "node1")
    assert address.hosts_store
    assert address.job == "slurm-41234.0"


def test_steps_and_jobs_that_follow_each_other_have_ports_of_their_own() -> None:
    ports = {
        parse_init_method(
            "slurm://", environ={**ENVIRON, "SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)}
        ).port
        for job in range(900, 1000)
        for step in range(5)
    }
    assert len(ports) == 500
    assert FIRST_PORT <= min(ports) <= max(ports) < FIRST_PORT + PORTS <= 32768


def test_arguments_take_precedence() -> None:
    address = parse_init_method("slurm://?port=4000", rank=0, world_size=2, environ=ENVIRON)
    assert (address.rank, address.world_size, address.port) == (0, 2, 4000)


@pytest.mark.parametrize(
    ("url", "changed", "words"),
    [
        (
            "slurm://",
            {"SLURM_PROCID": "", "SLURM_JOB_ID": ""},
            "SLURM_PROCID, SLURM_JOB_ID not set",
        ),
        ("slurm://", {"SLURM_PROCID": "x"}, "SLURM_PROCID must be an integer .* under `srun`"),
        ("slurm://", {"SLURM_PROCID": "9"}, "rank 9 is out of range"),
        ("slurm://", {"SLURM_STEP_NODELIST": "node["}, "SLURM_STEP_NODELIST cannot be read: 'node"),
        ("slurm://node3", {}, r"write 'slurm://' or 'slurm://\?port=29500'"),
        ("slurm://?prot=4", {}, "write 'slurm://'"),
        ("slurm://?port=0", {}, "port must be from 1 to 65535"),
    ],
)
def test_malformed(url: str, changed: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_init_method(url, environ={**ENVIRON, **changed})


def test_without_an_init_method_the_error_names_this_one() -> None:
    with pytest.raises(ValueError, match="give init_method='slurm://', or start sh -c"):
        parse_init_method(None, environ=ENVIRON)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node7", ["node7"]),
        ("a,b,c1", ["a", "b", "c1"]),
        ("node[1-3,7]", ["node1", "node2", "node3", "node7"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[1-2]-ib,x.lan", ["n1-ib", "n2-ib", "x.lan"]),
        ("r[1-2]n[3,5]", ["r1n3", "r1n5", "r2n3", "r2n5"]),
        ("[1-2]", ["1", "2"]),
    ],
)
def test_node_lists(text: str, hosts: list[str]) -> None:
    assert list(expand_nodes(text)) == hosts


@pytest.mark.parametrize(
    "text", ["", ",", "a,", "a,,b", "n[1-3", "n]", "n[3-1]", "n[a]", "n[1-2-3]", "n[]", "a b"]
)
def test_what_is_no_node_list(text: str) -> None:
    with pytest.raises(ValueError):
        list(expand_nodes(text))


@given(st.text(alphabet="n1-[],0", max_size=12))
def test_any_text_is_a_node_list_or_a_value_error(text: str) -> None:
    try:
        first = next(expand_nodes(text))
    except ValueError:
        return
    assert first
    assert not set(first) & set("[],")


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 5)), min_size=1, max_size=4))
def test_ranges(ranges: list[tuple[int, int]]) -> None:
    text = ",".join(f"{low:03}-{low + more:03}" for low, more in ranges)
    expected = [f"n{i:03}" for low, more in ranges for i in range(low, low + more + 1)]
    assert list(expand_nodes(f"n[{text}]")) == expected


def test_a_huge_list_is_not_expanded_for_its_first_host() -> None:
    assert next(expand_nodes("n[1-99999999999]")) == "n1"
