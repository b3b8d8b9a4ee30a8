"""Workers under a launcher that is stopped and woken: they call each other before, during, after.

Argument: a directory where each writes down how far it is. What it prints the launcher relays, which
stands still meanwhile.
"""

from __future__ import annotations

import sys
from pathlib import Path

from telegrad import rpc
from tests.faults.abandoned import joins_late, part, wait_until_known, wait_until_lost
from tests.faults.outcome import report
from tests.faults.remote_code import call_everybody

if __name__ == "__main__":
    rpc.init_rpc(options=rpc.RpcOptions(lost_after=1.0))
    rank = rpc.get_worker_info().rank
    losses: list[str] = []
    rpc.on_loss(lambda worker, error: losses.append(f"{worker.name} {error!r}"))

    def note(when: str) -> None:
        report(f"{when} {rank}", " ".join(call_everybody()))
        Path(sys.argv[1], f"{when} {rank}").touch()

    note("before")
    wait_until_lost()
    note("during")
    wait_until_known()
    note("after")
    report(f"late {rank}", joins_late())
    part()
    rpc.shutdown()
    report(f"losses {rank}", " ".join(losses))
