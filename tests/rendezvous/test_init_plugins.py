"""Init methods of other packages."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from telegrad.errors import RendezvousError
from telegrad.rendezvous import parse_init_method

Install = Callable[[str, str, str], None]

READ = """
from telegrad.rendezvous import JobAddress

def read_job(url, *, rank, world_size, environ):
    host = url.removeprefix("cluster://") or environ["LEADER"]
    return JobAddress.at(host, 29500, rank=rank or 0, world_size=world_size or 1, job="theirs", name="w")

def give_text(url, **_):
    return "10.0.0.1"
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a package with an init method: its name, the entry point, and its text."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(package: str, entry: str, text: str) -> None:
        (tmp_path / f"{package}.py").write_text(text)
        info = tmp_path / f"{package}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[telegrad.init_methods]\n{entry}\n")
        importlib.invalidate_caches()
        monkeypatch.delitem(sys.modules, package, raising=False)

    return install


def test_a_plug_in_says_where_the_job_is(install: Install) -> None:
    install("cluster_one", "cluster = cluster_one:read_job", READ)
    address = parse_init_method("cluster://10.0.0.9", rank=1, world_size=3)
    assert address.coordinator_endpoint == "grpc://10.0.0.9:29500"
    found = (address.rank, address.world_size, address.job, address.name)
    assert found == (1, 3, "theirs", "w")
    assert not address.hosts_store
    environ = {"LEADER": "node7"}
    assert parse_init_method("cluster://", environ=environ).host == "node7"


def test_an_unknown_scheme_lists_those_that_are_known(install: Install) -> None:
    install("cluster_three", "cluster = cluster_three:read_job", "raise RuntimeError('imported')")
    for unknown in ("clutser://", "https://x", "cluster"):
        with pytest.raises(ValueError, match="'slurm://'; installed packages add 'cluster://'$"):
            parse_init_method(unknown)


@pytest.mark.parametrize(
    ("text", "function", "words"),
    [
        ("raise RuntimeError('no cluster')", "read_job", "cannot be imported: RuntimeError: no cl"),
        (READ, "read_jbo", "cannot be imported: AttributeError"),
        (READ, "read_job", "has failed: KeyError: 'LEADER'"),
        (READ, "give_text", "returned str instead of a JobAddress"),
    ],
)
def test_a_plug_in_that_fails_is_named(
    install: Install, text: str, function: str, words: str
) -> None:
    install("cluster_four", f"cluster = cluster_four:{function}", text)
    with pytest.raises(RendezvousError, match=words) as caught:
        parse_init_method("cluster://")
    named = f"'cluster://', 'cluster_four:{function}' of package cluster_four 1.2"
    assert named in str(caught.value)


def test_two_plug_ins_for_one_scheme_are_both_named(install: Install) -> None:
    install("cluster_five", "cluster = cluster_five:read_job", READ)
    install("cluster_six", "cluster = cluster_six:read_job", READ)
    with pytest.raises(
        RendezvousError, match="package cluster_five 1.2 and .* cluster_six 1.2; un"
    ):
        parse_init_method("cluster://")


def test_a_plug_in_replaces_nothing_of_telegrads_own(install: Install) -> None:
    for scheme in ("tcp", "slurm"):
        install(f"false_{scheme}", f"{scheme} = false_{scheme}:read_job", READ)
    assert parse_init_method("tcp://h:1", rank=0, world_size=1).job == "default"
    with pytest.raises(ValueError, match="SLURM_PROCID"):
        parse_init_method("slurm://")
