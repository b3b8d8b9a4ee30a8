"""Two processes that both host the coordinator, as RANK was 0 for both."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from telegrad import rpc
from telegrad.errors import DuplicateNameError


def test_each_of_two_with_rank_0_hears_of_the_other(port: int) -> None:
    """One said that the address was in use, and the other waited for its time to be over."""

    def join(name: str) -> str:
        with (
            pytest.raises(DuplicateNameError) as caught,
            rpc.Agent(
                name,
                rank=0,
                world_size=2,
                init_method=f"tcp://127.0.0.1:{port}",
                options=rpc.RpcOptions(token="a token of the test's"),
            ),
        ):
            pass
        return str(caught.value)

    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(join, ["worker0", "worker0"]))
    for words in said:
        assert words.count(f"pid {os.getpid()} on ") == 2
        assert "another living worker is 'worker0' (rank 0)" in words
