"""`telegrad run --limit`: what others may take of the coordinator."""

from __future__ import annotations

import argparse

import pytest

from telegrad import rpc
from telegrad.errors import EncodeError, RendezvousError
from telegrad.launch.cli import main
from telegrad.launch.run import LEAST, MOST, RunOptions, _serving, limits_of, parse_limit
from telegrad.rendezvous import JoinedJob
from telegrad.rendezvous.control import ControlLine
from telegrad.rpc.seams import connection_limits, core_of
from telegrad.transport import GrpcTransport, make_token

SECONDS = 20.0


def test_the_names_are_those_of_workers() -> None:
    """And so is what they do."""
    for name, least in LEAST.items():
        pair = parse_limit(f"{name}={least}")
        of_workers = rpc.Limits(**{name: pair[1]})  # type: ignore[arg-type]
        assert limits_of([pair]) == connection_limits(of_workers)
    assert limits_of([]) == connection_limits(rpc.Limits())


@pytest.mark.parametrize(
    "text",
    ["", "connections", "connections=", "connections=0", "connections=1.5", f"connections={MOST + 1}",
     "handshake_seconds=nan", "handshake_seconds=0", "stalled_after=1", "depth=100", "=5"],
)  # fmt: skip
def test_what_is_no_limit(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse_limit(text)
    assert main(["run", "--limit", text, "train.py"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("telegrad run: argument --limit: ")
    assert error.count("\n") == 1


def test_a_coordinator_that_a_command_hosts_is_bounded() -> None:
    limits = limits_of([parse_limit("connections=1"), parse_limit(f"document_bytes={2**16}")])
    options = RunOptions(command=[], script="train.py", workers=1, limits=limits)
    token = make_token()
    lines = [
        ControlLine(job="job", rank=rank, token=token, transports=[GrpcTransport()])
        for rank in range(2)
    ]
    try:
        with _serving(options, "job", token, None) as (_, port):
            lines[0].connect(f"grpc://127.0.0.1:{port}", SECONDS)
            with pytest.raises(RendezvousError, match=r"1 connections.*Limits\.connections"):
                lines[1].connect(f"grpc://127.0.0.1:{port}", SECONDS)
            with pytest.raises(RendezvousError, match=r"broke the protocol.*document_bytes"):
                lines[0].ask("store.set", {"key": "k", "value": bytes(2**17)}, timeout=SECONDS)
    finally:
        for line in lines:
            line.close()


def test_a_worker_bounds_its_line_and_the_coordinator_that_it_hosts() -> None:
    limits = rpc.Limits(document_bytes=2**16, handshake_seconds=3.0, connections=7)
    with rpc.Agent("alone", options=rpc.RpcOptions(limits=limits)) as agent:
        job = core_of(agent).attached(JoinedJob)
        assert job.coordinator is not None
        line, coordinator = job._line._exchange._terms, job.coordinator._exchange._terms
        assert line.limits == connection_limits(limits)
        assert coordinator.limits.connections == 14
        assert line.prove_within == coordinator.prove_within == 3.0
        with pytest.raises(EncodeError, match="document_bytes"):
            job.store.set("k", bytes(2**17))
