"""`telegrad certs`, and jobs whose workers prove their names with what it makes."""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from telegrad.launch.cli import main
from telegrad.transport import read_certificate
from telegrad.transport.addresses import interfaces

if TYPE_CHECKING:
    from tests.conftest import Programs

RUN = ["telegrad", "run"]
TOKEN = "a token that only the tests use"

JOB = """
import numpy as np
from telegrad import rpc
from telegrad.rendezvous import JoinedJob
from telegrad.rpc.seams import current_agent

def twice(x):
    return 2 * x

agent = rpc.init_rpc()
members = current_agent().attachments[JoinedJob].living
right = (agent.rank + 1) % agent.world_size
(endpoint, *_) = next(m.endpoints for m in members() if m.info.rank == right)
found = rpc.rpc_sync(right, twice, (np.ones(300_000),))
print(f"{agent.name} got {found.sum():g}", flush=True)
rpc.shutdown()
"""


@pytest.fixture
def certs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes a directory the current one; returns where certificates go."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "certs"


def names_in(path: Path) -> tuple[str, ...]:
    return read_certificate(path.read_bytes()).names


def test_what_is_made(certs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certs", "init"]) == 0
    assert "next: telegrad certs issue coordinator worker0 worker1" in capsys.readouterr().out
    arguments = ["issue", "worker0", "W.1_b", "--coordinator", "--host", "10.0.0.7", "--days", "2"]
    assert main(["certs", *arguments]) == 0
    said = capsys.readouterr().out
    assert f"export TELEGRAD_TLS_CERTIFICATE='{certs}/{{name}}.crt'" in said
    assert names_in(certs / "W.1_b.crt") == ("W.1_b", "coordinator")
    found = read_certificate((certs / "worker0.crt").read_bytes())
    assert found.addresses == ("10.0.0.7",)
    assert (found.valid_until - found.valid_from).days == 3  # one of them has passed
    for key in certs.glob("*.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(certs.stat().st_mode) == 0o700
    assert main(["certs", "show", "certs/worker0.crt"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"names: +worker0, coordinator\n", said)
    assert found.fingerprint in said


def test_nothing_is_overwritten(certs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certs", "init", "mine"]) == 0
    assert main(["certs", "issue", "--dir", "mine", "worker0"]) == 0
    before = {path.name: path.read_bytes() for path in Path("mine").iterdir()}
    assert main(["certs", "init", "mine"]) == 1
    assert main(["certs", "issue", "--dir", "mine", "worker1", "worker0"]) == 1
    assert capsys.readouterr().err.count("nothing is overwritten") == 2
    assert {path.name: path.read_bytes() for path in Path("mine").iterdir()} == before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["issue", "my worker"], "use letters, digits"),
        (["issue", "ca"], "authority's own files"),
        (["issue", "a", "A"], "distinct without case"),
        (["issue", "a", "--days", "0"], "--days must be above 0"),
        (["issue", "a", "--days", "nan"], "--days must be above 0"),
        (["issue", "a", "--dir", "nowhere"], "run: telegrad certs init nowhere"),
        (["show", "nowhere"], "'nowhere': No such file"),
        (["show", "certs/ca.key"], "is no certificate"),
    ],
)
def test_what_is_refused(
    certs: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert main(["certs", "init"]) == 0
    assert main(["certs", *arguments]) == 1
    assert says in capsys.readouterr().err
    assert sorted(path.name for path in certs.iterdir()) == ["ca.crt", "ca.key"]


def test_an_authority_whose_key_others_may_read(
    certs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["certs", "init"]) == 0
    (certs / "ca.key").chmod(0o644)
    assert main(["certs", "issue", "worker0"]) == 1
    assert f"chmod 600 {Path('certs/ca.key')}" in capsys.readouterr().err
    assert not (certs / "worker0.crt").exists()


# -- whole jobs -------------------------------------------------------------------------------


def environment(certs: Path) -> dict[str, str]:
    return {
        "TELEGRAD_TLS_CA": str(certs / "ca.crt"),
        "TELEGRAD_TLS_CERTIFICATE": str(certs / "{name}.crt"),
        "TELEGRAD_TLS_KEY": str(certs / "{name}.key"),
    }


@pytest.mark.long
def test_a_whole_job_proves_its_names(certs: Path, programs: Programs) -> None:
    main(["certs", "init"])
    main(["certs", "issue", "coordinator", "worker0", "worker1"])
    command = [*RUN, "--nproc-per-node", "2", str(programs.script(JOB))]
    output = programs.start(command, env=environment(certs)).wait()
    assert "worker0 got 600000" in output
    assert "worker1 got 600000" in output


@pytest.mark.long
def test_the_worker_that_hosts_the_coordinator_answers_to_that_name(
    certs: Path, programs: Programs
) -> None:
    main(["certs", "init"])
    main(["certs", "issue", "worker0", "worker1"])
    lone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    script = programs.script(JOB)
    output = programs.start(["python", script], env=lone | environment(certs)).wait(code=1)
    assert "this worker hosts the coordinator, whose name is 'coordinator'" in output
    for path in certs.glob("worker0.*"):
        path.unlink()
    main(["certs", "issue", "worker0", "--coordinator"])
    job = programs.ranks(script, 2, env=environment(certs))
    for worker in job:
        assert "got 600000" in worker.wait()


@pytest.mark.long
def test_a_job_beyond_loopback_encrypts_by_itself(programs: Programs) -> None:
    """Each worker makes a certificate at its start; nothing has to be set up but the token."""
    found = [each.address for each in interfaces() if ":" not in each.address]
    if not found:
        pytest.skip("this machine has no IPv4 address but loopback")
    env = {"MASTER_ADDR": found[0], "TELEGRAD_TOKEN": TOKEN}
    report = JOB.replace("got", "{endpoint} got")
    report = report.replace("init_rpc()", "init_rpc(options=rpc.RpcOptions(direct='tcp'))")
    for worker in programs.ranks(programs.script(report), 2, env=env):
        assert re.search(r"worker\d grpcs://.* got 600000", worker.wait())
