"""The identity of a host: two workers are on one if boot and network namespace are the same."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from telegrad import doctor, rpc
from telegrad.transport import LocalTransport, find_local, host, read_host_id

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
