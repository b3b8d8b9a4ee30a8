"""Holds docs/security.md to the code: its settings exist, its program runs, its log is right."""

from __future__ import annotations

import dataclasses
import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from telegrad import rpc
from telegrad.errors import AuthenticationError, EncodeError
from telegrad.launch.cli import main
from telegrad.transport import ConnectionLimits
from telegrad.wire import DecodeLimits, decode, encode
from tests.audit_log import audit_log_of_all
from tests.conftest import Programs, unused_port

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "security.md").read_text()
UNITS = {"": 1, " KiB": 2**10, " MiB": 2**20, " GiB": 2**30}


def rows(header: str) -> list[list[str]]:
    """The rows of the table that begins with this column."""
    found = re.search(rf"^\| {header} \|.*\n\|[-|]+\n((?:\|.*\n)+)", GUIDE, re.MULTILINE)
    assert found, header
    return [[cell.strip() for cell in row[1:-1].split("|")] for row in found[1].splitlines()]


def test_the_settings_of_the_table_exist() -> None:
    options = {each.name for each in dataclasses.fields(rpc.RpcOptions)}
    named = {name for row in rows("setting") for name in re.findall(r"`(\w+)`", row[0])}
    assert named <= options
    assert {"token", "tls", "callables", "limits", "bind", "insecure"} <= named


def test_the_table_of_limits_has_all_with_their_defaults() -> None:
    told = {}
    for name, default, _ in rows("limit"):
        number = re.fullmatch(r"([\d,]+)( \w+)?", default)
        assert number, default
        told[name.strip("`")] = int(number[1].replace(",", "")) * UNITS[number[2] or ""]
    assert told == dataclasses.asdict(rpc.Limits())


def test_the_fixed_bounds_are_told() -> None:
    streams, size, seconds, workers = re.findall(
        r"\*\*(\d+) streams\*\*.*?stream has (\d+) KiB.*?"
        r"\*\*(\d+) s\*\*.*?\*\*([\d,]+) workers\*\*",
        GUIDE,
        re.DOTALL,
    )[0]
    limits = ConnectionLimits()
    assert int(streams) == limits.unproved
    assert int(size) * 2**10 == limits.handshake_bytes
    assert float(seconds) == limits.handshake_seconds
    assert int(workers.replace(",", "")) == limits.connections


def test_the_depth_that_a_sender_refuses_is_told() -> None:
    levels, deepest = map(int, re.findall(r"(\d+) levels\*\*.*deeper\s+than (\d+)", GUIDE)[0])
    assert levels == DecodeLimits().depth
    for make in (
        lambda value: (value,),
        lambda value: {1: value},
        lambda value: frozenset([value]),
    ):
        value: object = 0
        for _ in range(deepest):
            value = make(value)
        assert decode(encode(value).document) == value
        with pytest.raises(EncodeError, match=f"nested deeper than {deepest}"):
            encode(make(value))


@pytest.mark.long
def test_the_program_runs_with_certificates(programs: Programs) -> None:
    found = re.search(r"```python\n(\"\"\"scorer\.py.*?)```", GUIDE, re.DOTALL)
    assert found
    certs = programs.directory / "certs"
    assert main(["certs", "init", str(certs)]) == 0
    names = ["coordinator", "worker0", "worker1"]
    assert main(["certs", "issue", "--dir", str(certs), *names]) == 0
    text = found[1].replace('f"{os.environ', f'f"{programs.directory}/{{os.environ')
    output = programs.run(
        ["telegrad", "run", "--nproc-per-node", "2", programs.script(text, "scorer.py")],
        env={
            "TELEGRAD_TLS_CA": str(certs / "ca.crt"),
            "TELEGRAD_TLS_CERTIFICATE": str(certs / "{name}.crt"),
            "TELEGRAD_TLS_KEY": str(certs / "{name}.key"),
        },
    )
    assert "[0] [1. 1.]" in output.splitlines()
    lines = (programs.directory / "worker1.audit.jsonl").read_text().splitlines()
    admitted = [each for each in map(json.loads, lines) if each["event"] == "connection.admitted"]
    assert {each["certificate"][0] for each in admitted} <= {"worker0", "coordinator"}
    assert admitted


def test_a_wrong_token_leaves_the_records_that_are_shown() -> None:
    address, token = f"tcp://127.0.0.1:{unused_port()}", "a token of the tests"

    def join(rank: int, token: str) -> rpc.Agent:
        options = rpc.RpcOptions(token=token, init_timeout=20.0)
        name = f"worker{rank}"
        return rpc.Agent(name, rank=rank, world_size=2, init_method=address, options=options)

    with audit_log_of_all() as log, ThreadPoolExecutor(1) as pool:
        hosting = pool.submit(join, 0, token)
        with pytest.raises(AuthenticationError) as caught:
            join(1, "a token of somebody else's")
        assert not hosting.done()
        agents = [join(1, token), hosting.result()]
        real = [log.wait(event)[0] for event in ("connection.refused", "dial.refused")]
        for agent in agents:
            agent.shutdown(graceful=False)
    shown = [json.loads(each) for each in re.findall(r"^    (\{.*?\})\n$", GUIDE, re.M | re.S)]
    assert [list(each) for each in shown] == [list(each) for each in real]
    changing = {"time", "address", "endpoint", "incarnation", "peer", "worker", "words"}
    for told, happened in zip(shown, real, strict=True):
        assert {k: v for k, v in told.items() if k not in changing} == {
            k: v for k, v in happened.items() if k not in changing
        }
        assert happened["words"].startswith(told["words"].removesuffix("..."))
    words = re.search(r"    AuthenticationError: \S+ (.*?)\n\n", GUIDE, re.DOTALL)
    assert words
    assert " ".join(words[1].split()) in str(caught.value)
