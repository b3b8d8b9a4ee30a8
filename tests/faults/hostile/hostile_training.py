"""The hostile cases of collectives, backward, optimizers and modules, each stopped in its middle."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from telegrad import collectives as dist
from telegrad import dist_autograd, rpc
from telegrad.autograd import RowSparse, Tensor, tensor
from telegrad.collectives import ProcessGroup
from telegrad.collectives.seams import Groups
from telegrad.errors import AutogradError, EvictedError, WorkerLostError
from telegrad.nn import Linear
from telegrad.parallel import (
    DistributedDataParallel,
    DistributedOptimizer,
    RemoteModule,
    functional,
    parameter_rrefs,
)
from telegrad.parallel import (
    all_reduce_rows as reduce_rows,
)
from telegrad.rpc.seams import current_agent
from tests.faults.hostile.hostile_remote import HeldModule, HeldOptimizer, hold
from tests.faults.hostile.hostile_row import Table, lost, prepared, row
from tests.faults.remote_code import vector

TRAINING: Table = {}

RANKS = [1, 2, 3]  # caller, callee, owner
LARGE = 400_000  # items, of which none goes without asking


# -- collectives: the callee does not come ---------------------------------------------------------


def group_of_three(name: str) -> ProcessGroup:
    return dist.new_group(RANKS, timeout=math.inf)


def group(name: str) -> ProcessGroup:
    return cast("ProcessGroup", prepared(name))


def in_flight(name: str) -> bool:
    return group(name).statistics().in_flight > 0


ALL = lost("caller", "callee", "owner")
COLLECTIVE: Any = {
    "at": ("caller", "owner"),
    "held": (),
    "middle": in_flight,
    "ends": ALL,
    "prepare": group_of_three,
    "members": ("caller", "callee", "owner"),
}


@row(TRAINING, "collectives.all_reduce", "collectives.ProcessGroup", **COLLECTIVE)
def all_reduce(name: str) -> None:
    dist.all_reduce(np.ones(3), group=group(name))


@row(TRAINING, "collectives.all_reduce", **COLLECTIVE)
def all_reduce_large(name: str) -> None:
    dist.all_reduce(np.ones(LARGE), group=group(name))


@row(TRAINING, "collectives.Work", "collectives.Work.wait", **COLLECTIVE)
def work_wait(name: str) -> object:
    return dist.all_reduce(np.ones(3), group=group(name), async_op=True).wait()


@row(TRAINING, "collectives.Work.__await__", **COLLECTIVE)
def work_await(name: str) -> object:
    async def main() -> None:
        await dist.all_reduce(np.ones(LARGE), group=group(name), async_op=True)

    return asyncio.run(main())


@row(TRAINING, "collectives.Work.then", **COLLECTIVE)
def work_then(name: str) -> object:
    work = dist.all_gather(np.ones(3), group=group(name), async_op=True)
    return work.then(lambda done: len(done.value())).wait()


@row(TRAINING, "collectives.broadcast", **COLLECTIVE)
def broadcast(name: str) -> None:
    dist.broadcast(np.ones(LARGE), RANKS[1], group(name))


@row(TRAINING, "collectives.coalesced", **COLLECTIVE)
def coalesced(name: str) -> None:
    with dist.coalesced(group(name)):
        dist.all_reduce(np.ones(LARGE), group=group(name))
        dist.broadcast(np.ones(3), RANKS[1], group(name))


@row(TRAINING, "collectives.all_gather", **COLLECTIVE)
def all_gather(name: str) -> object:
    return len(dist.all_gather(np.ones(LARGE), group=group(name)))


@row(TRAINING, "collectives.barrier", **COLLECTIVE)
def barrier(name: str) -> None:
    dist.barrier(group(name))


@row(TRAINING, "collectives.send", **COLLECTIVE)
def send(name: str) -> None:
    """Large ones, that wait for their `recv`."""
    dist.send(np.ones(LARGE), RANKS[1], group=group(name))


@row(TRAINING, "collectives.recv", **COLLECTIVE)
def recv(name: str) -> None:
    dist.recv(np.ones(3), RANKS[1], group=group(name))


@row(TRAINING, "collectives.reduce", **COLLECTIVE)
def reduce(name: str) -> None:
    dist.reduce(np.ones(LARGE), RANKS[0], group=group(name))


@row(TRAINING, "collectives.gather", **COLLECTIVE)
def gather(name: str) -> object:
    return len(dist.gather(np.ones(3), RANKS[0], group=group(name)) or ())


@row(TRAINING, "collectives.scatter", **COLLECTIVE)
def scatter(name: str) -> None:
    """From a rank that does not come."""
    dist.scatter(np.ones(3), None, RANKS[1], group=group(name))


@row(TRAINING, "collectives.reduce_scatter", "collectives.reduce_scatter_single", **COLLECTIVE)
def reduce_scatter(name: str) -> object:
    return dist.reduce_scatter_single(np.ones(3 * LARGE), group=group(name)).size


@row(TRAINING, "collectives.all_to_all", "collectives.all_to_all_single", **COLLECTIVE)
def all_to_all(name: str) -> object:
    return len(dist.all_to_all([np.ones(LARGE) for _ in RANKS], group=group(name)))


@row(TRAINING, "collectives.all_gather_single", **COLLECTIVE)
def all_gather_single(name: str) -> object:
    return dist.all_gather_single(np.ones(LARGE), group=group(name)).size


@row(TRAINING, "collectives.all_gather_object", "collectives.gather_object", **COLLECTIVE)
def all_gather_object(name: str) -> object:
    return len(dist.all_gather_object("x" * 100, group=group(name)))


@row(TRAINING, "collectives.broadcast_object_list", "collectives.scatter_object_list", **COLLECTIVE)
def broadcast_object_list(name: str) -> None:
    dist.broadcast_object_list(["x", 1], RANKS[1], group=group(name))


@row(TRAINING, "collectives.recv_object_list", "collectives.send_object_list", **COLLECTIVE)
def recv_object_list(name: str) -> None:
    dist.recv_object_list([None], RANKS[1], group=group(name))


@row(TRAINING, "collectives.irecv", "collectives.isend", **COLLECTIVE)
def irecv(name: str) -> object:
    return dist.irecv(np.ones(3), RANKS[1], group=group(name)).wait()


@row(TRAINING, "collectives.batch_isend_irecv", "collectives.P2POp", **COLLECTIVE)
def batch(name: str) -> object:
    operations = [dist.P2POp(dist.irecv, np.ones(3), RANKS[1], group(name))]
    return [work.wait() for work in dist.batch_isend_irecv(operations)]


@row(TRAINING, "collectives.monitored_barrier", **COLLECTIVE)
def monitored_barrier(name: str) -> None:
    dist.monitored_barrier(group(name))


def is_forming(name: str) -> bool:
    """Tells whether both verbs wait that make a group."""
    return current_agent().attachments[Groups].formations.waiting > 1


@row(
    TRAINING,
    "collectives.new_group",
    "collectives.new_subgroups",
    "collectives.new_subgroups_by_enumeration",
    "collectives.split_group",
    at=("caller", "owner"),
    held=(),
    middle=is_forming,
    ends=ALL,
)
def new_group(name: str) -> object:
    return dist.new_group(RANKS, timeout=math.inf).size


@row(
    TRAINING,
    "collectives.shrink_group",
    at=("caller", "owner"),
    held=(),
    middle=is_forming,
    prepare=group_of_three,
    members=("caller", "callee", "owner"),
    cut_off=(None, EvictedError),  # with the loss of all others it has a group of its own
)
def shrink_group(name: str) -> object:
    """Goes on without the lost one; the callee comes in the end."""
    return dist.shrink_group(group(name)).size


@row(TRAINING, "parallel.all_reduce_rows", **COLLECTIVE)
def all_reduce_rows(name: str) -> object:
    mine = RowSparse(np.arange(3), np.ones((3, LARGE)), (5, LARGE))
    return len(reduce_rows(mine, group(name)).rows)


def summed_in_group(name: str) -> tuple[ProcessGroup, Tensor]:
    made = group_of_three(name)
    return made, functional.all_reduce(tensor(np.ones(3), requires_grad=True), group=made)


def in_flight_backward(name: str) -> bool:
    return cast("tuple[ProcessGroup, Tensor]", prepared(name))[0].statistics().in_flight > 0


@row(
    TRAINING,
    *(f"functional.{name}" for name in functional.__all__),
    **COLLECTIVE | {"prepare": summed_in_group, "middle": in_flight_backward},
)
def functional_backward(name: str) -> None:
    """Through the sum of three ranks, of which one does not come."""
    cast("tuple[ProcessGroup, Tensor]", prepared(name))[1].sum().backward()


@row(TRAINING, "parallel.DistributedDataParallel", **COLLECTIVE)
def ddp_construction(name: str) -> object:
    return DistributedDataParallel(Linear(2, 2), process_group=group(name)).training


def wrapped(name: str) -> tuple[ProcessGroup, DistributedDataParallel]:
    chosen = group_of_three(name)
    return chosen, DistributedDataParallel(Linear(2, 2), process_group=chosen)


def in_flight_inside(name: str) -> bool:
    chosen, _ = cast("tuple[ProcessGroup, DistributedDataParallel]", prepared(name))
    return chosen.statistics().in_flight > 0


WRAPPED: Any = {
    **COLLECTIVE,
    "prepare": wrapped,
    "middle": in_flight_inside,
    "refused": AutogradError,
}


def loss_of(name: str) -> Tensor:
    _, module = cast("tuple[ProcessGroup, DistributedDataParallel]", prepared(name))
    return cast("Tensor", module(tensor(np.ones((1, 2), np.float32))).sum())


@row(TRAINING, "parallel.DistributedDataParallel", **WRAPPED)
def ddp_backward(name: str) -> None:
    loss_of(name).backward()


@row(TRAINING, "parallel.DistributedDataParallel", **WRAPPED)
def ddp_backward_in_a_context(name: str) -> None:
    with dist_autograd.context() as context_id:
        dist_autograd.backward(context_id, [loss_of(name)], timeout=math.inf)


# -- backward --------------------------------------------------------------------------------------


def holds_backwards(x: Tensor, name: str) -> Tensor:
    """Computes at the owner too; backwards it stops before it goes on to there."""

    def hook(gradient: Tensor) -> None:
        hold(name)

    y = rpc.rpc_sync("owner", at_the_owner, (x * 3.0,))
    y.register_hook(hook)
    return y * 1.0


def at_the_owner(x: Tensor) -> Tensor:
    return x * 2.0


@row(TRAINING, "dist_autograd.backward", ends=lost("callee", "owner"))
def backward(name: str) -> None:
    x = vector()
    with dist_autograd.context() as context_id:
        loss = rpc.rpc_sync("callee", holds_backwards, (x, name)).sum()
        try:
            dist_autograd.backward(context_id, [loss], timeout=math.inf)
        except WorkerLostError:
            assert dist_autograd.get_gradients(context_id) == {}
            raise


@row(TRAINING, "dist_autograd.grad", ends=lost("callee", "owner", owner_of_value="callee"))
def grad(name: str) -> None:
    """Of a root that is the callee's, and of one that is here."""
    x = vector()
    with dist_autograd.context() as context_id:
        roots = [x.sum(), rpc.remote("callee", loss_that_holds_backwards, (x, name))]
        dist_autograd.grad(context_id, roots, x, create_graph=True, timeout=math.inf)


def loss_that_holds_backwards(x: Tensor, name: str) -> Tensor:
    return holds_backwards(x, name).sum()


@row(
    TRAINING,
    "rpc.RRef.backward",
    ends=lost("callee", "owner", owner_of_value="callee"),
)
def rref_backward(name: str) -> None:
    """The callee has the root."""
    x = vector()
    with dist_autograd.context() as context_id:
        loss = rpc.remote("callee", loss_that_holds_backwards, (x, name))
        try:
            loss.backward(context_id, timeout=math.inf)
        except WorkerLostError:
            assert dist_autograd.get_gradients(context_id) == {}
            raise


# -- modules and optimizers of other workers -------------------------------------------------------

OF_CALLEE: Any = {
    "ends": lost("callee", owner_of_value="callee"),
    "cancels": {"caller": ("callee",)},
}
CALLS_OWNER: Any = {"ends": lost("callee"), "cancels": {"caller": ("callee",)}}


@row(TRAINING, "parallel.RemoteModule", **CALLS_OWNER)
def module_construction(name: str) -> object:
    module = RemoteModule("callee", HeldModule, ("__init__", name), timeout=math.inf)
    return module.training


@row(TRAINING, "parallel.RemoteModule.from_rref", **CALLS_OWNER)
def module_from_rref(name: str) -> object:
    rref = rpc.remote("callee", HeldModule, ("__init__", name), timeout=math.inf)
    return RemoteModule.from_rref(rref, timeout=math.inf).training


def held_at(where: str) -> Callable[[str], RemoteModule]:
    def prepare(name: str) -> RemoteModule:
        return RemoteModule("callee", HeldModule, (where, name), timeout=math.inf)

    return prepare


def module(name: str) -> RemoteModule:
    return cast("RemoteModule", prepared(name))


@row(TRAINING, "parallel.RemoteModule.forward", **OF_CALLEE, prepare=held_at("forward"))
def module_forward(name: str) -> object:
    return module(name)(np.ones((1, 2), np.float32)).shape


@row(TRAINING, "parallel.RemoteModule.forward_async", **OF_CALLEE, prepare=held_at("forward"))
def module_forward_async(name: str) -> object:
    return module(name).forward_async(np.ones((1, 2), np.float32)).wait().shape


@row(
    TRAINING,
    "parallel.RemoteModule.remote_parameters",
    **CALLS_OWNER,
    prepare=held_at("parameters"),
)
def module_parameters(name: str) -> object:
    return len(module(name).remote_parameters())


@row(TRAINING, "parallel.parameter_rrefs", **CALLS_OWNER, prepare=held_at("parameters"))
def module_parameter_rrefs(name: str) -> object:
    return len(parameter_rrefs(module(name).get_module_rref()))


@row(TRAINING, "parallel.RemoteModule.state_dict", **OF_CALLEE, prepare=held_at("state_dict"))
def module_state_dict(name: str) -> object:
    return len(module(name).state_dict())


@row(TRAINING, "parallel.RemoteModule.state_shapes", **OF_CALLEE, prepare=held_at("state_shapes"))
def module_state_shapes(name: str) -> object:
    return len(module(name).state_shapes())


LOADED: Any = {**OF_CALLEE, "prepare": held_at("load_state_dict")}


@row(TRAINING, "parallel.RemoteModule.load_state_dict", **LOADED)
def module_load_state_dict(name: str) -> None:
    module(name).load_state_dict({"weight": np.ones((2, 2)), "bias": np.ones(2)})


@row(TRAINING, "parallel.RemoteModule.train", **CALLS_OWNER, prepare=held_at("train"))
def module_train(name: str) -> object:
    return module(name).train().training


@row(TRAINING, "parallel.RemoteModule.eval", **CALLS_OWNER, prepare=held_at("train"))
def module_eval(name: str) -> object:
    return module(name).eval().training


@row(TRAINING, "parallel.RemoteModule.to", **CALLS_OWNER, prepare=held_at("to"))
def module_to(name: str) -> object:
    return module(name).to("cpu").training


@row(TRAINING, "parallel.RemoteModule.zero_grad", **OF_CALLEE, prepare=held_at("zero_grad"))
def module_zero_grad(name: str) -> None:
    module(name).zero_grad()


@row(
    TRAINING,
    "parallel.RemoteModule.requires_grad_",
    **CALLS_OWNER,
    prepare=held_at("requires_grad_"),
)
def module_requires_grad(name: str) -> object:
    return module(name).requires_grad_(False).training


def parameters(name: str) -> list[rpc.RRef[Any]]:
    return [rpc.remote("callee", vector) for _ in range(2)]


@row(
    TRAINING,
    "parallel.DistributedOptimizer",
    ends=lost("callee", owner_of_value="callee"),
    cancels={"caller": ("callee",)},
    prepare=parameters,
)
def optimizer_construction(name: str) -> object:
    rrefs = cast("list[rpc.RRef[Any]]", prepared(name))
    DistributedOptimizer(HeldOptimizer, rrefs, "__init__", name)
    return None


def optimizer(name: str) -> DistributedOptimizer:
    return DistributedOptimizer(HeldOptimizer, parameters(name), "apply", name)


@row(
    TRAINING,
    "parallel.DistributedOptimizer.step",
    ends=lost("callee", owner_of_value="callee"),
    cancels={"caller": ("callee",)},
    prepare=optimizer,
)
def optimizer_step(name: str) -> None:
    with dist_autograd.context() as context_id:
        rpc.rpc_sync("callee", knows_the_context)
        cast("DistributedOptimizer", prepared(name)).step(context_id, timeout=math.inf)


def knows_the_context() -> None:
    """Is called in one."""
