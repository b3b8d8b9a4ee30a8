"""Two workers without a launcher; all that may go wrong before, while and after they join.

Rank 0 hosts the coordinator and waits; rank 1 tries whatever is refused, then joins; both work,
shut down, and find that nothing works any more.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from telegrad import dist_autograd, rpc
from telegrad.autograd import tensor
from telegrad.nn import Linear
from telegrad.parallel import parameter_rrefs
from tests.faults.outcome import failure_of, report


def who() -> str:
    return rpc.get_worker_info().name


def verbs() -> dict[str, Callable[[], object]]:
    """Whatever needs an agent."""
    return {
        "rpc_sync": lambda: rpc.rpc_sync("worker1", who),
        "rpc_async": lambda: rpc.rpc_async("worker1", who),
        "remote": lambda: rpc.remote("worker1", who),
        "RRef": lambda: rpc.RRef(3),
        "get_worker_info": rpc.get_worker_info,
        "get_worker_infos": rpc.get_worker_infos,
        "statistics": rpc.statistics,
        "context": lambda: dist_autograd.context().__enter__(),
        "backward": lambda: dist_autograd.backward(1, [tensor(1.0, requires_grad=True)]),
        "parameter_rrefs": lambda: parameter_rrefs(Linear(2, 2)),
    }


def try_all(when: str) -> None:
    for name, verb in verbs().items():
        report(f"{when}: {name}", failure_of(verb))


def try_to_join(item: str, name: str | None = None, **options: object) -> None:
    """Expects a refusal; nothing may be left of it."""
    chosen = rpc.RpcOptions(**{"init_timeout": 20.0, **options})  # type: ignore[arg-type]
    report(item, failure_of(lambda: rpc.init_rpc(name, options=chosen)))
    report(f"{item}, initialized", str(rpc.is_initialized()))


def try_what_is_refused() -> None:
    try_to_join("wrong token", token="another token than theirs, and long enough")
    try_to_join("duplicate name", "worker0")
    try_to_join("duplicate name in capitals", "WORKER0")
    try_to_join("port in use", port=int(os.environ["MASTER_PORT"]))
    try_to_join("bad name", "no blanks in names")
    with replaced(RANK="0", WORLD_SIZE="3"):  # of another job, by mistake
        try_to_join("the coordinator's port in use", "other")
    with replaced(WORLD_SIZE="3"):
        try_to_join("wrong world size")
    with replaced(RANK="0", WORLD_SIZE="3", MASTER_PORT=os.environ["FREE_PORT"]):
        try_to_join("nobody comes", init_timeout=0.5)
    try_all("after a failed one")


@contextmanager
def replaced(**values: str) -> Iterator[None]:
    before = {name: os.environ[name] for name in values}
    os.environ.update(values)
    yield
    os.environ.update(before)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    rank = int(os.environ["RANK"])
    try_all("before")
    rpc.shutdown()  # legal in any state
    if rank == 1:
        try_what_is_refused()
    rpc.init_rpc()
    report("second", failure_of(lambda: rpc.init_rpc("second")))
    report("calls", " ".join(rpc.rpc_sync(to, who) for to in (0, 1)))
    info = rpc.get_worker_info(1 - rank)
    rpc.shutdown()
    rpc.shutdown()
    try_all("after")
    report("after: by WorkerInfo", failure_of(lambda: rpc.rpc_sync(info, who)))
    for variable in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        del os.environ[variable]
    with rpc.init_rpc("alone"):
        report("again", rpc.rpc_sync("alone", who))


if __name__ == "__main__":
    main()
