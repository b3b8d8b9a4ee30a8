"""`make chaos-hosts` itself: a short run of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from scripts import chaos_hosts
from tests.hosts.conftest import MakeHosts


@pytest.mark.long
def test_a_run(make_hosts: MakeHosts) -> None:
    """With a cut that loses nobody, and connections that end again and again."""
    make_hosts(2)  # skips where hosts cannot be made
    command = [sys.executable, chaos_hosts.__file__, "--runs", "1", "--seed", "69"]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "seed 69 passed" in ended.stdout
