"""Pains of users: strangers, pickled code, forked children, functions that do not travel."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import telegrad
from telegrad import launch, rpc
from tests.faults.processes import listeners
from tests.pains.remote_code import process_id

pytestmark = pytest.mark.usefixtures("forked_processes")


@pytest.mark.usefixtures("alone")
def test_pain_07_no_authentication_and_every_interface() -> None:
    """All listen on loopback alone."""
    with rpc.init_rpc(), launch.LocalWorkers(1) as workers:
        worker = rpc.rpc_sync(workers.names[0], process_id)
        assert worker != os.getpid()
        for pid in (worker, os.getpid()):
            assert {each.host for each in listeners(pid)} == {"127.0.0.1"}


# A statement that imports modules, or names from one; `import a, b` is written on two lines.
IMPORT = re.compile(r"^\s*(?:from|import) +(\w+)", re.MULTILINE)


def test_pain_08_pickle_runs_what_it_is_sent() -> None:
    """Nothing here unpickles."""
    imports = {
        name
        for path in Path(telegrad.__file__).parent.rglob("*.py")
        for name in IMPORT.findall(path.read_text())
    }
    assert {"msgpack", "numpy"} <= imports
    assert not imports & {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
