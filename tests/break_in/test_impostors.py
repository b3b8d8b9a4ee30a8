"""Those who hold the token and a certificate of their own, and would be somebody else with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from telegrad.rendezvous import COORDINATOR_NAME
from telegrad.rendezvous.control import COORDINATOR_RANK, line_owner
from telegrad.transport import Credentials, Exchange, GrpcTransport, Identity
from telegrad.transport.security import handshake
from telegrad.types import WorkerInfo
from tests.conftest import Programs
from tests.transport.workers import TOKEN, Authority, Recorder

JOINS = """
import logging, sys
logging.basicConfig(level=logging.INFO)
from telegrad import rpc
from telegrad.errors import RendezvousError
tls = rpc.TlsOptions(ca=sys.argv[2], certificate=sys.argv[3], key=sys.argv[4])
options = rpc.RpcOptions(token=sys.argv[5], tls=tls, init_timeout=20)
try:
    rpc.init_rpc("worker1", rank=1, world_size=2, init_method=sys.argv[1], options=options)
except RendezvousError as error:
    print(type(error).__name__, error)
"""


def test_a_worker_poses_as_the_coordinator(
    programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says its own name, which its certificate proves, and the coordinator's rank."""
    # Unlike an honest listener it does not mind for whom it is taken.
    monkeypatch.setattr(handshake, "_check_expected", lambda found, expected: None)
    authority = Authority(tmp_path)
    heard = Recorder()
    identity = Identity("default", WorkerInfo("worker2", COORDINATOR_RANK, 5))
    impostor = Exchange(
        Credentials(identity=identity, token=TOKEN, certified=line_owner),
        transports=[GrpcTransport(tls=authority.tls("worker2"))],
        receiver=heard,
    )
    address = "tcp://" + impostor.start()[0].partition("://")[2]
    worker = authority.options("worker1")
    files = [str(worker.ca), str(worker.certificate), str(worker.key)]
    try:
        output = programs.run(
            ["python", programs.script(JOINS), address, *files, TOKEN.decode()],
            env={"TELEGRAD_JOB": "default"},
        )
    finally:
        impostor.close(0.5)
    assert "RendezvousError" in output
    assert f"{COORDINATOR_NAME} was dialled, but worker2 listens there now" in output
    assert '"event": "dial.refused"' in output
    assert not heard.envelopes
