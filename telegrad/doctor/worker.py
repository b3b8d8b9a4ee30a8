"""The program of each of the doctor's workers: it joins, examines, reports to all hosts and leaves.

rank 0            the job's store            the others
                  ready/RANK          ◀───   each dials rank 0, which may not reach it itself
examine()
report      ───▶  report              ───▶   the first worker of each host writes it to a file

Any member can write to the store: the others bound and escape what they read there.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from telegrad.doctor.examination import LONGEST_DIAL_SECONDS, examine
from telegrad.doctor.probe import DoctorProbe
from telegrad.errors import RendezvousError, RendezvousTimeoutError, TelegradError
from telegrad.rendezvous import JoinedJob, PrefixStore
from telegrad.rpc import RpcOptions, init_rpc, shutdown
from telegrad.rpc.seams import AgentCore, current_agent
from telegrad.wire import escaped

PREFIX = "telegrad/doctor"
READY_SECONDS = 10.0  # for the others to dial rank 0, which takes 3
REPORT_SECONDS = 30.0  # beyond the timeout, for the slowest pairs to end
LEAVE_SECONDS = 10.0
MOST_BYTES = 1 << 26  # of a report; one of 300 workers has 45 MB


def main(arguments: Sequence[str]) -> int:
    """Runs the program; returns its exit code: 1 if it could not join, or got no report.

    Args:
        arguments: The file for the report; in JSON, the seconds for all workers to come, and the
            port to listen on, as in `RpcOptions`.
    """
    file, timeout, port = Path(arguments[0]), *map(json.loads, arguments[1:])
    try:
        init_rpc(options=RpcOptions(init_timeout=timeout, port=port, callables="exposed"))
        written = _examined(current_agent(), timeout)
    except (TelegradError, OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        shutdown(graceful=False)
        return 1
    except KeyboardInterrupt:
        shutdown(graceful=False)
        return 128 + signal.SIGINT
    if os.environ.get("LOCAL_RANK", "0") == "0":
        file.write_bytes(written)
    with contextlib.suppress(TelegradError):
        shutdown(timeout=LEAVE_SECONDS)
    return 0


def _examined(agent: AgentCore, timeout: float) -> bytes:
    """Returns the report with its text, as JSON; ranks other than 0 read it from the store."""
    table = PrefixStore(PREFIX, agent.attachments[JoinedJob].store)
    others = [each for each in agent.members.living() if each.rank != 0]
    if agent.info.rank != 0:
        first = [each for each in agent.members.living() if each.rank == 0]
        agent.attachments[DoctorProbe].reach(first, LONGEST_DIAL_SECONDS)
        table.set(f"ready/{agent.info.rank}", b"1")
        found = table.get("report", timeout=READY_SECONDS + timeout + REPORT_SECONDS)
        return checked(found, first[0].name if first else "rank 0")
    with contextlib.suppress(RendezvousTimeoutError):  # the report then names silent workers
        table.wait([f"ready/{each.rank}" for each in others], timeout=READY_SECONDS)
    report = examine(timeout)
    written = json.dumps({"text": str(report), **report.to_dict()}).encode()
    table.set("report", written)
    return written


def checked(written: bytes, name: str) -> bytes:
    """Returns a report from the job's store, fit for a terminal.

    Args:
        written: The report.
        name: The name of the worker that has to have written it.

    Raises:
        RendezvousError: It is no report.
    """
    try:
        if len(written) > MOST_BYTES:
            raise ValueError(f"it has {len(written)} bytes")
        report: dict[str, Any] = json.loads(written)
        text = escaped(str(report["text"]), lines=True, most=MOST_BYTES)
        plain = {**report, "text": f"{name!r} reports:\n\n{text}", "ok": report["ok"] is True}
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise RendezvousError(
            f"the job's store holds no report of {name!r} (it holds {written[:40]!r}: {error}); "
            "look at the doctor on the host of rank 0, and which program writes to the store"
        ) from error
    return json.dumps(plain).encode()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
