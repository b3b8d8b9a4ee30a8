"""Marks of the tests that are about parts which only some systems have."""

from __future__ import annotations

import pytest

from telegrad.arrays import can_share
from telegrad.transport import can_read_directly

needs_memory = pytest.mark.skipif(not can_share(), reason="this system has no memfd")
needs_epoll = pytest.mark.skipif(
    not can_read_directly(), reason="this system has no epoll or no eventfd"
)
