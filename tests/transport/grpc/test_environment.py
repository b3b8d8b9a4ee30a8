"""What gRPC reads while it is imported is set by then, unless the user has set it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from telegrad.transport.grpc.environment import set_grpc_environment

if TYPE_CHECKING:
    from tests.conftest import Programs

VARIABLES = ["ENABLE_FORK_SUPPORT", "VERBOSITY", "EXPERIMENTS"]

IMPORTS = """
import os, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "grpc":
            print(*(os.environ.get(f"GRPC_{name}") for name in sys.argv[2:]))

sys.meta_path.insert(0, Watch())
__import__(sys.argv[1])

import grpc

grpc.insecure_channel("127.0.0.1:1").close()
"""


def environment_found(
    module: str, programs: Programs, own: dict[str, str] | None = None
) -> list[str]:
    """Returns the lines that a program prints which imports a module and then uses gRPC.

    The first is what gRPC found. gRPC would print another for a name that it does not know.
    """
    command: list[str | Path] = ["python", programs.script(IMPORTS), module, *VARIABLES]
    return programs.run(command, env=own, executed=True).splitlines()


@pytest.mark.long
@pytest.mark.parametrize("module", ["telegrad.rpc", "telegrad.transport.grpc.errors"])
def test_what_grpc_finds_and_knows(module: str, programs: Programs) -> None:
    found = environment_found(module, programs)
    assert found == ["0 ERROR -event_engine_client,-event_engine_listener"]


OWN = [
    (
        {"GRPC_ENABLE_FORK_SUPPORT": "1", "GRPC_VERBOSITY": "DEBUG", "GRPC_EXPERIMENTS": ""},
        "1 DEBUG ",
    ),
    ({"GRPC_TRACE": "http", "GRPC_EXPERIMENTS": "tcp_rcv_lowat"}, "0 None tcp_rcv_lowat"),
]


@pytest.mark.parametrize(("own", "found"), OWN)
def test_what_the_user_has_set_stays(own: dict[str, str], found: str) -> None:
    environ = dict(own)
    set_grpc_environment(environ, imported=set())
    assert " ".join(str(environ.get(f"GRPC_{name}")) for name in VARIABLES) == found


@pytest.mark.long
@pytest.mark.parametrize("module", ["telegrad.rpc", "telegrad.transport.grpc.errors"])
@pytest.mark.parametrize(("own", "found"), OWN)
def test_grpc_finds_what_the_user_has_set(
    module: str, own: dict[str, str], found: str, programs: Programs
) -> None:
    assert environment_found(module, programs, own)[0] == found


def test_nothing_is_set_after_the_import_of_grpc(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "telegrad.transport")
    environ: dict[str, str] = {}
    set_grpc_environment(environ, imported={"grpc"})
    assert environ == {}
    (record,) = caplog.records
    assert record.levelno == logging.DEBUG
    assert "set GRPC_ENABLE_FORK_SUPPORT=0 before either is imported" in record.getMessage()


def test_nothing_is_said_where_the_user_has_chosen(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "telegrad.transport")
    set_grpc_environment({"GRPC_ENABLE_FORK_SUPPORT": "1"}, imported={"grpc"})
    assert caplog.records == []
