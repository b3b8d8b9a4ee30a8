"""`telegrad run --limit`: what others may take of the coordinator."""

from __future__ import annotations

import argparse
from contextlib import closing

import pytest

from telegrad import rpc
from telegrad.errors import EncodeError, RendezvousError
from telegrad.launch.cli import main
from telegrad.launch.run import LEAST, MOST, RunOptions, limits_of, parse_limit, serving
from telegrad.rendezvous import JoinedJob
from telegrad.rendezvous.control import ControlLine
from telegrad.rpc.seams import connection_limits, current_agent
from telegrad.transport import GrpcTransport, make_token
from tests.conftest import unused_port

SECONDS = 20.0
TOKEN = "a token that only the tests use"


def test_the_names_are_those_of_workers() -> None:
    """And so is what they do."""
    for name, least in LEAST.items():
        pair = parse_limit(f"{name}={least}")
        of_workers = rpc.Limits(**{name: pair[1]})
        assert limits_of([pair]) == connection_limits(of_workers)
    assert limits_of([]) == connection_limits(rpc.Limits())


@pytest.mark.parametrize(
    "text",
    ["", "message_bytes", "message_bytes=", "message_bytes=0", "message_bytes=1.5e9",
     f"message_bytes={MOST + 1}", "document_bytes=-1", "document_bytes=inf", "pending_bytes=1",
     "=5"],
)  # fmt: skip
def test_what_is_no_limit(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse_limit(text)
    assert main(["run", "--limit", text, "train.py"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("telegrad run: argument --limit: ")
    assert error.count("\n") == 1


def check_that_it_is_bounded(port: int, token: bytes) -> None:
    line = ControlLine(job="job", rank=1, token=token, transports=[GrpcTransport()])
    with closing(line):
        line.connect(f"grpc://127.0.0.1:{port}", SECONDS)
        with pytest.raises(RendezvousError, match=r"broke the protocol.*document_bytes"):
            line.ask("store.set", {"key": "k", "value": bytes(2**17)}, timeout=SECONDS)


def test_a_coordinator_that_a_command_hosts_is_bounded() -> None:
    limits = limits_of([parse_limit(f"document_bytes={2**16}")])
    options = RunOptions(command=[], script="train.py", workers=1, limits=limits)
    token = make_token()
    with serving(options, "job", token, None) as (_, port):
        check_that_it_is_bounded(port, token)


def test_a_worker_bounds_the_coordinator_that_it_hosts() -> None:
    limits = rpc.Limits(document_bytes=2**16)
    port = unused_port()
    options = rpc.RpcOptions(limits=limits, token=TOKEN)
    address = f"tcp://127.0.0.1:{port}?job=job"
    with rpc.Agent("alone", rank=0, world_size=1, init_method=address, options=options):
        check_that_it_is_bounded(port, TOKEN.encode())


def test_a_worker_bounds_its_line() -> None:
    options = rpc.RpcOptions(limits=rpc.Limits(document_bytes=2**16))
    with rpc.Agent("alone", options=options) as agent, agent.as_current():
        with pytest.raises(EncodeError, match="document_bytes"):
            current_agent().attachments[JoinedJob].store.set("k", bytes(2**17))
