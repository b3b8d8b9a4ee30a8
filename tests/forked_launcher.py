"""`telegrad run` whose workers are forked, for tests of what workers do and not of how they start."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from telegrad.launch.cli import main
from telegrad.testing.fork_server import ForkedProcess


class Worker(ForkedProcess):
    """A worker that is forked where the launcher executes `worker_process.py exec LAUNCHER COMMAND`.

    So it does not end with the launcher, but with the launcher's watcher.
    """

    def __init__(self, args: Sequence[str], **options: Any) -> None:
        command = args[args.index("exec") + 2 :] if "exec" in args else args
        super().__init__(command, **options)


if __name__ == "__main__":
    subprocess.Popen = Worker  # type: ignore[assignment, misc]
    sys.exit(main())
