"""Turns of an event loop."""

from __future__ import annotations

import asyncio

__all__ = ["turn"]


async def turn(count: int = 1) -> None:
    """Lets the loop that runs go round once, or so many times: whatever is ready runs."""
    for _ in range(count):
        await asyncio.sleep(0)
