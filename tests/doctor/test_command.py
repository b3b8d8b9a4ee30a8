"""`telegrad doctor`: on one host, on several at addresses of loopback, and where they do not meet."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from telegrad.doctor.command import (
    PlainDial,
    add_doctor,
    explain,
    explained,
    look_at_host,
    look_at_way,
)
from telegrad.errors import AuthenticationError, RendezvousError, RendezvousTimeoutError
from telegrad.launch import cli
from telegrad.launch.run import Refusals, RunOptions
from telegrad.rpc import RpcOptions
from telegrad.transport import Audit, set_grpc_environment
from tests.conftest import TOKEN, unused_port
from tests.launch.test_run import FORKED_WORKERS, Run
from tests.transport.workers import Authority

Start = Callable[..., Run]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts `telegrad doctor` with arguments, and a token of its own where one is given."""
    runs: list[Run] = []

    def start(*arguments: object, token: str = TOKEN) -> Run:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TELEGRAD_TOKEN", token)
            words = map(str, arguments)
            runs.append(Run(tmp_path, *words, command=[*FORKED_WORKERS, "doctor"]))
        return runs[-1]

    yield start
    for each in runs:
        each.close()


def node(rank: int, port: int, *more: object, of: int = 2) -> tuple[object, ...]:
    where = ("--master-addr", "127.0.0.2", "--master-port", port)
    return ("--nnodes", of, "--node-rank", rank, *where, *more)


def joined(lines: list[str]) -> str:
    """The output without its line breaks."""
    return " ".join(line.strip() for line in lines)


# Whole jobs ----------------------------------------------------------------------------------


@pytest.mark.long
def test_without_arguments_it_checks_this_host(start: Start, tmp_path: Path) -> None:
    code, lines = start("--json", tmp_path / "report.json").finish()
    assert code == 0, lines
    assert lines[0].startswith(f"host {socket.gethostname()}: Python ")
    assert "token: from TELEGRAD_TOKEN" in lines
    assert TOKEN not in joined(lines)
    assert "2 workers on 1 host" in lines
    assert "round trip in ms" in lines
    assert "nothing is wrong" in lines
    told = json.loads((tmp_path / "report.json").read_text())
    assert told["ok"] is True
    assert [each["name"] for each in told["report"]["workers"]] == ["worker0", "worker1"]
    assert told["report"]["pairs"][0]["transport"] == "local"
    assert "worker0 and worker1: local to" in joined(lines)
    assert "past gRPC" in joined(lines)


@pytest.mark.long
def test_two_hosts_both_print_the_report(start: Start) -> None:
    port = unused_port()
    runs = [start(*node(0, port)), start(*node(1, port, "--nproc-per-node", 2, "--no-listen"))]
    for run in runs:
        code, lines = run.finish()
        assert code == 0, lines
        assert "3 workers on 1 host" in lines
        assert "worker1 and worker2 cannot call each other" in joined(lines)
        assert "nothing is wrong" in lines


@pytest.mark.long
def test_a_token_that_differs_is_told_on_both_hosts(start: Start) -> None:
    """The one with the other token knocks every 0.2 s before host 0 begins to wait for 6 s."""
    port = unused_port()
    other = start(*node(1, port, "--timeout", 30), token="another token of the same length")
    other.wait_for("waiting for node 0")
    first = start(*node(0, port, "--timeout", 6))
    code, lines = other.finish()
    assert code == 1, lines
    assert "the dialler holds another token" in joined(lines)
    assert "set TELEGRAD_TOKEN to the same value on all nodes" in joined(lines)
    code, lines = first.finish()
    assert code == 1, lines
    text = joined(lines)
    assert "missing after 6 s: node 1; somebody came and was turned away: node1 from" in text
    assert "the dialler holds another token" in text


@pytest.mark.long
def test_host_0_names_all_who_did_not_come(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    port = unused_port()
    code, lines = start(*node(0, port, "--timeout", 0.5, "--json", file, of=3)).finish()
    assert code == 1, lines
    text = joined(lines)
    assert "missing after 0.5 s: node 1, node 2; nobody else has come through at port" in text
    told = json.loads(file.read_text())
    assert told["ok"] is False
    assert "node 1, node 2" in told["failures"][0]["words"]


@pytest.mark.long
def test_ctrl_c_ends_it_quietly(start: Start) -> None:
    run = start(*node(0, unused_port()))
    run.wait_for("node 0 of 2 is ready")
    run.process.send_signal(signal.SIGINT)
    code, lines = run.finish()
    assert code == 130, lines
    assert not any("Traceback" in line or "problem" in line for line in lines)


def missing(refused: Sequence[str], *, rank: int = 0, remedy: bool = False) -> str:
    options = RunOptions(
        command=(), script="doctor", workers=1, nodes=3, node=rank, port=29500, gather=60.0
    )
    error = RendezvousTimeoutError("too late", missing=("node 2",))
    found = explained(options, error, refused)
    return found.remedy if remedy else found.words


def test_host_0_says_who_knocked_and_was_turned_away() -> None:
    nobody = missing([])
    assert (
        nobody
        == "missing after 60 s: node 2; nobody else has come through at port 29500 (of whom TLS turns away nothing is heard here)"
    )
    assert "turned away: node2 from 10.0.0.3" in missing(["node2 from 10.0.0.3 (another token)"])
    token = missing(["node2 from 10.0.0.3 (the dialler holds another token)"], remedy=True)
    assert token.startswith(
        "set TELEGRAD_TOKEN, or the file TELEGRAD_TOKEN_FILE, to the same value"
    )
    assert missing([], remedy=True).startswith("run on each of them the same command")
    assert missing([], rank=1) == "this host reached host 0, and others did not come: node 2"


def test_the_audit_log_tells_host_0_who_knocked() -> None:
    said: list[str] = []
    with Refusals(said.append) as refused:
        audit = Audit("coordinator")
        for port in (47290, 47291):
            audit.record(
                "connection.refused",
                peer="store.-3.ff.node1",
                address=f"grpcs ipv4:10.0.0.2:{port}",
                reason="AUTHENTICATION",
                words="another token",
            )
        audit.record("dial.refused", peer="worker1", reason="JOB", words="another job")
        audit.close()
    assert refused.found == ["node1 from 10.0.0.2 (another token)"]
    assert said == refused.found


# The command line ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nnodes", "2"], "needs --node-rank, --master-addr, --master-port"),
        (["--nproc-per-node", "0"], "--nproc-per-node must be at least 1"),
        (["--timeout", "0"], "--timeout: must be a number of seconds above 0"),
        (["--timeout", "nan"], "--timeout: must be"),
        (["--timeout", "long"], "--timeout: must be a number of seconds above 0 (got 'long')"),
        (["--port", "many"], "--port: must be a port or a range"),
        (["--port", "29599-29501"], "--port: must be a port or a range"),
        (["--port", "29501-29599", "--no-listen"], "not allowed with argument --port"),
        (["--json", "/no such directory/report.json"], "--json cannot be written"),
        (["--nonsense"], "unrecognized arguments"),
    ],
)
def test_what_cannot_be_is_refused_with_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["doctor", *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "port"),
    [
        ([], 0),
        (["--port", "0"], 0),
        (["--port", "29501"], 29501),
        (["--port", "29501-29599"], "29501-29599"),
        (["--no-listen"], None),
    ],
)
def test_ports_that_can_be(arguments: list[str], port: int | str | None) -> None:
    parser = argparse.ArgumentParser()
    add_doctor(parser.add_subparsers(), lambda parser: None)
    assert parser.parse_args(["doctor", *arguments]).port == port
    RpcOptions(port=port)


# This host -----------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """The environment of a user who has nothing yet."""
    return {"HOME": str(tmp_path)}


def test_a_host_without_a_token_gets_one_for_several_hosts_alone(home: dict[str, str]) -> None:
    alone = look_at_host(home, master=None, name="coordinator")
    assert any("none yet; the first job makes" in line for line in alone.lines)
    assert not alone.problems
    token = Path(home["HOME"]) / ".config" / "telegrad" / "token"
    assert not token.exists()
    several = look_at_host(home, master="10.0.0.1", name="coordinator")
    assert f"token: {token} (mode 0600)" in several.lines
    assert token.exists()


def test_a_token_file_that_others_may_read_is_wrong(home: dict[str, str]) -> None:
    token = Path(home["HOME"]) / "token"
    token.write_text("long enough to be one\n")
    token.chmod(0o644)
    environ = home | {"TELEGRAD_TOKEN_FILE": str(token)}
    (problem,) = look_at_host(environ, master=None, name="coordinator").problems
    assert "may be used by others (mode 0644)" in problem.words
    assert problem.remedy == f"run: chmod 600 {token}"


def test_a_token_is_never_shown(home: dict[str, str]) -> None:
    environ = home | {"TELEGRAD_TOKEN": "a secret of enough length", "TELEGRAD_JOB": "mine"}
    facts = look_at_host(environ, master=None, name="coordinator")
    assert "environment: TELEGRAD_JOB=mine" in facts.lines
    assert "a secret" not in json.dumps(dataclasses.asdict(facts))


def test_of_grpcs_variables_those_are_shown_that_telegrad_has_not_set(home: dict[str, str]) -> None:
    set_grpc_environment(home, imported=())
    facts = look_at_host(home, master=None, name="coordinator")
    assert not any(line.startswith("environment: ") for line in facts.lines)
    facts = look_at_host(home | {"GRPC_VERBOSITY": "INFO"}, master=None, name="coordinator")
    assert "environment: GRPC_VERBOSITY=INFO" in facts.lines


def test_certificates_that_are_named_in_part_are_wrong(home: dict[str, str]) -> None:
    environ = home | {"TELEGRAD_TLS_CA": "ca.crt"}
    facts = look_at_host(environ, master=None, name="coordinator")
    (problem,) = facts.problems
    assert "must be set, too" in problem.words
    assert "set all three, or none" in problem.remedy


@pytest.mark.parametrize("several", [False, True])
def test_without_the_package_that_encrypts(
    home: dict[str, str], several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one host that is a note; between several nothing would start."""
    found: Callable[[str], Any] = lambda name: None  # noqa: E731
    monkeypatch.setattr("telegrad.doctor.command.importlib.util.find_spec", found)
    facts = look_at_host(home, master="10.0.0.1" if several else None, name="coordinator")
    remedies = [each.remedy for each in (facts.problems if several else facts.notes)]
    assert "run: pip install cryptography" in remedies


def test_without_that_package_certificates_of_an_authority_are_enough(
    home: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Authority(tmp_path).options("coordinator")
    environ = home | {
        "TELEGRAD_TLS_CA": str(files.ca),
        "TELEGRAD_TLS_CERTIFICATE": str(files.certificate),
        "TELEGRAD_TLS_KEY": str(files.key),
    }
    monkeypatch.setattr("telegrad.doctor.command.importlib.util.find_spec", lambda name: None)
    facts = look_at_host(environ, master="10.0.0.1", name="coordinator")
    told = "encryption: with certificates of the job's own authority, here "
    assert any(line.startswith(told) for line in facts.lines)
    assert not facts.problems


def test_a_host_whose_name_is_loopback_is_noted(
    home: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "debian")
    monkeypatch.setattr("telegrad.doctor.command.address_of", lambda name: "127.0.1.1")
    for master, told in ((None, 1), ("debian", 1), ("10.0.0.1", 0)):
        notes = look_at_host(home, master=master, name="coordinator").notes
        assert sum("'debian', means 127.0.1.1" in each.words for each in notes) == told


# The way to host 0 ---------------------------------------------------------------------------


def way(ended: str, **changes: Any) -> PlainDial:
    known: dict[str, Any] = {
        "address": "10.0.0.1",
        "source": "10.0.0.2",
        "own": ("10.0.0.2 (eth0)",),
    }
    return PlainDial("node0", 29500, ended, **{**known, **changes})


LATE = TimeoutError("node 0 was not reached")


@pytest.mark.parametrize(
    ("ended", "words", "remedy"),
    [
        ("unknown name", "host 0 was not found", "/etc/hosts"),
        ("no route", "knows no way to host 0 at node0:29500 (10.0.0.1)", "ip route get 10.0.0.1"),
        ("silent", "packets leave this host from 10.0.0.2", "from 10.0.0.2 to any port 29500"),
        ("refused", "nobody listens at port 29500 there", "--node-rank 0"),
        ("open", "does not speak as telegrad does", "ss -ltnp 'sport = :29500'"),
        ("broke", "was not reached", "10.0.0.2 (eth0)"),
    ],
)
def test_each_way_of_not_reaching_host_0_has_its_words(ended: str, words: str, remedy: str) -> None:
    found = explain(LATE, way(ended))
    assert words in found.words
    assert remedy in found.remedy


def test_a_name_that_leads_to_this_host_itself_is_told_so() -> None:
    found = explain(LATE, way("refused", address="127.0.1.1"))
    assert "--master-addr node0 (127.0.1.1) leads to this host itself" in found.words


def test_a_host_that_did_not_come_in_looks_at_the_way() -> None:
    options = RunOptions(
        command=(),
        script="doctor",
        workers=1,
        nodes=2,
        node=1,
        host="127.0.0.2",
        port=unused_port(),
    )
    found = explained(options, LATE, [])
    assert f"nobody listens at port {options.port} here" in found.words
    assert found.remedy.startswith("name an address of host 0")


@pytest.mark.parametrize("error", [AuthenticationError, RendezvousError])
def test_what_host_0_has_said_goes_before_what_the_way_looks_like(error: type[Exception]) -> None:
    found = explain(error("it has another token; copy node 0's"), way("open"))
    assert (found.words, found.remedy) == ("it has another token", "copy node 0's")


def test_the_way_to_a_port_is_looked_at() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = look_at_way("127.0.0.1", port)
        assert (found.ended, found.address, found.source) == ("open", "127.0.0.1", "127.0.0.1")
    assert look_at_way("127.0.0.1", port).ended == "refused"
    assert look_at_way("no such name", port).ended == "unknown name"


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        (TimeoutError(), "silent"),
        (OSError(101, os.strerror(101)), "no route"),
        (OSError(13, "Permission denied"), "broke"),
    ],
)
def test_how_a_connection_fails_is_told_apart(
    error: OSError, ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr("telegrad.doctor.command.socket.create_connection", fails)
    assert look_at_way("127.0.0.1", 1).ended == ended
