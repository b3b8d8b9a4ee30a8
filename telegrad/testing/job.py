"""The job that a cluster's workers join: a coordinator in the test's process, and a token."""

from __future__ import annotations

import dataclasses
import secrets
from typing import final

from telegrad.rendezvous import Coordinator
from telegrad.rpc import RpcOptions
from telegrad.rpc.seams import connection_limits
from telegrad.transport import Transport, make_token

CLOSE_SECONDS = 5.0


@final
class Job:
    """The meeting point of the workers of one cluster.

    Args:
        n: The number of workers.
        options: The test's options; their token is used, or one is made.
    """

    def __init__(self, n: int, options: RpcOptions | None) -> None:
        given = options or RpcOptions()
        token = make_token() if given.token is None and not given.insecure else given.token
        self.name = f"cluster-{secrets.token_hex(4)}"
        self.size = n
        self.options = dataclasses.replace(given, token=token)
        self.endpoint = ""
        self.token = token.encode() if isinstance(token, str) else token
        self._coordinator: Coordinator | None = None

    def listen(self, transport: Transport) -> None:
        """Starts the coordinator."""
        self._coordinator = Coordinator(
            [transport],
            job=self.name,
            token=self.token,
            world_size=self.size,
            lost_after=self.options.lost_after,
            limits=connection_limits(self.options.limits),
        )
        (self.endpoint,) = self._coordinator.start()

    def environment(self, rank: int) -> dict[str, str]:
        """Returns the environment of one worker, which `env://` reads."""
        host, _, port = self.endpoint.rpartition("://")[2].rpartition(":")
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_WORLD_SIZE": str(self.size),
            "MASTER_ADDR": host,
            "MASTER_PORT": port,
            "TELEGRAD_JOB": self.name,
            "TELEGRAD_NAME": f"worker{rank}",
        }

    def close(self) -> None:
        """Closes the coordinator; idempotent."""
        if self._coordinator is not None:
            self._coordinator.close(CLOSE_SECONDS)
