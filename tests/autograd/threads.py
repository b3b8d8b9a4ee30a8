"""Runs functions in threads of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

__all__ = ["in_threads"]


def in_threads(*functions: Callable[[], Any]) -> list[Any]:
    """What each gives in a thread of its own; all begin at once."""
    start = threading.Barrier(len(functions))

    def run(function: Callable[[], Any]) -> Any:
        start.wait()
        return function()

    with ThreadPoolExecutor(len(functions)) as pool:
        return list(pool.map(run, functions))
