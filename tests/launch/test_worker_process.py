"""The processes of a session, where the system has `/proc` and where it has none."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from telegrad.launch import worker_process
from telegrad.launch.worker_process import kill_sessions, session_members
from telegrad.testing.leaks import wait_until_gone

# Leaves a process that has ended and that nobody waits for, beside two that run.
PROGRAM = "sleep 0 & sleep 60 & echo; read line"


@pytest.mark.skipif(shutil.which("ps") is None, reason="ps is not installed here")
def test_ps_tells_the_same_as_proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with subprocess.Popen(
        ["sh", "-c", PROGRAM],
        start_new_session=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as leader:
        try:
            assert leader.stdout is not None
            assert leader.stdout.readline() == b"\n"
            wait_until_gone("end", lambda: [] if len(session_members([leader.pid])) == 2 else [1])
            told_by_proc = session_members([leader.pid])
            monkeypatch.setattr(worker_process, "PROC", str(tmp_path))
            assert sorted(session_members([leader.pid])) == sorted(told_by_proc)
        finally:
            assert leader.pid in kill_sessions([leader.pid], signal.SIGKILL)
            wait_until_gone("members", lambda: session_members([leader.pid]))
