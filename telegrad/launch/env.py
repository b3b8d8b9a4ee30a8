"""The environment of the launched workers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from telegrad.transport import cores

# By default each worker's BLAS takes all cores: three workers on two cores run 6 times slower.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

# telegrad sets it as well, before it imports gRPC: too late if a program imports gRPC first.
FORK_SUPPORT = {"GRPC_ENABLE_FORK_SUPPORT": "0"}


def thread_limits(environ: Mapping[str, str], workers: int, cores: int) -> dict[str, str]:
    """Returns the thread counts to set: each worker's share, for variables that are not set.

    >>> thread_limits({"MKL_NUM_THREADS": "4"}, workers=3, cores=2)
    {'OMP_NUM_THREADS': '1', 'OPENBLAS_NUM_THREADS': '1'}
    """
    share = str(max(1, cores // workers))
    return {name: share for name in THREAD_VARIABLES if not environ.get(name)}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnvironment:
    """The part of the environment that all workers of a job on this host share.

    Attributes:
        base: The launcher's own environment.
        workers: The number of workers on this host.
        first_rank: The rank of the first of them.
        world_size: The number of workers on all hosts.
        host: The coordinator's host.
        port: The coordinator's port.
        job: The job's name.
        token_file: The file with the job's token; its directory, which the launcher removes at
            the end, is also that of the workers' Unix sockets.
    """

    base: Mapping[str, str]
    workers: int
    first_rank: int
    world_size: int
    host: str
    port: int
    job: str
    token_file: str

    @property
    def ranks(self) -> range:
        """The ranks of this host's workers."""
        return range(self.first_rank, self.first_rank + self.workers)

    def of(self, rank: int) -> dict[str, str]:
        """Returns the environment of one worker."""
        environment = FORK_SUPPORT | dict(self.base)
        environment.pop("TELEGRAD_TOKEN", None)  # it would override this job's own
        environment.update(thread_limits(self.base, self.workers, cores()))
        environment.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank - self.first_rank),
            WORLD_SIZE=str(self.world_size),
            LOCAL_WORLD_SIZE=str(self.workers),
            MASTER_ADDR=self.host,
            MASTER_PORT=str(self.port),
            TELEGRAD_JOB=self.job,
            TELEGRAD_NAME=f"worker{rank}",
            TELEGRAD_TOKEN_FILE=self.token_file,
            TELEGRAD_SOCKETS=os.path.dirname(self.token_file),
        )
        return environment
