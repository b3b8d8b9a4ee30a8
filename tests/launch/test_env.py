"""The environment of a worker."""

from __future__ import annotations

from telegrad.launch.env import THREAD_VARIABLES, JobEnvironment, thread_limits


def test_threads_are_shared_and_the_users_choice_is_kept() -> None:
    environ = {"OMP_NUM_THREADS": "7", "MKL_NUM_THREADS": ""}
    assert thread_limits(environ, workers=4, cores=16) == {
        "OPENBLAS_NUM_THREADS": "4",
        "MKL_NUM_THREADS": "4",
    }
    assert set(thread_limits({}, workers=3, cores=2).values()) == {"1"}


def test_every_variable_is_there_and_no_token() -> None:
    environment = JobEnvironment(
        base={
            "HOME": "/home/x",
            "TELEGRAD_TOKEN": "of another job",
            **dict.fromkeys(THREAD_VARIABLES, "1"),
        },
        workers=3,
        first_rank=2,
        world_size=5,
        host="127.0.0.1",
        port=4000,
        job="train-1",
        token_file="/tmp/x/token",
    )
    assert environment.ranks == range(2, 5)
    assert environment.of(3) == {
        "GRPC_ENABLE_FORK_SUPPORT": "0",
        "HOME": "/home/x",
        **dict.fromkeys(THREAD_VARIABLES, "1"),
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "5",
        "LOCAL_WORLD_SIZE": "3",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "4000",
        "TELEGRAD_JOB": "train-1",
        "TELEGRAD_NAME": "worker3",
        "TELEGRAD_TOKEN_FILE": "/tmp/x/token",
        "TELEGRAD_SOCKETS": "/tmp/x",
    }
