"""`telegrad run` whose workers are forked, for tests of what workers do and not of how they start."""

from __future__ import annotations

import subprocess
import sys

from telegrad.launch.cli import main
from telegrad.testing.fork_server import ForkedProcess

if __name__ == "__main__":
    subprocess.Popen = ForkedProcess  # type: ignore[assignment, misc]
    sys.exit(main())
