"""Which public names the table of hostile cases covers, and why it says nothing of the others."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

from telegrad import collectives, dist_autograd, doctor, parallel, rpc
from tests.faults.hostile.hostile_table import ROWS

__all__ = ["ELSEWHERE", "WAITS_FOR_NOBODY", "covered", "public_verbs", "table"]

MODULES: tuple[ModuleType, ...] = (
    rpc,
    dist_autograd,
    collectives,
    parallel,
    parallel.functional,
    doctor,
)
# Whose methods wait; what else is exported is a value, or a part of an agent.
CLASSES: tuple[type, ...] = (
    rpc.AsCompleted,
    rpc.Future,
    rpc.RRef,
    rpc.Stream,
    collectives.Work,
    parallel.DistributedDataParallel,
    parallel.DistributedOptimizer,
    parallel.RemoteModule,
)
SPECIAL = {"__await__", "__anext__", "__next__"}

# What waits for other workers, but not in a job that is complete and goes on.
ELSEWHERE = {
    "rpc.init_rpc": "hostile/test_hostile_ends.py::test_a_worker_lost_while_others_join",
    "collectives.init_process_group": "hostile/test_hostile_ends.py::test_a_worker_lost_while_others_join",
    "rpc.shutdown": "hostile/test_hostile_ends.py::test_a_worker_lost_while_others_shut_down",
    "rpc.Agent": "hostile/test_hostile_ends.py::test_a_worker_lost_while_others_shut_down",
    "collectives.destroy_process_group": (
        "hostile/test_hostile_ends.py::test_a_worker_lost_while_others_shut_down"
    ),
    "parallel.DistributedDataParallel.join": (
        "tests/parallel/test_join.py::test_a_process_that_is_killed_in_a_block_fails_the_others"
    ),
    **dict.fromkeys(
        (
            "parallel.allreduce_hook",
            "parallel.bfloat16_compress_hook",
            "parallel.float16_compress_hook",
        ),
        "tests/parallel/test_hooks.py",
    ),
    **dict.fromkeys(
        ("parallel.int8_compress_hook", "parallel.top_k_compress_hook"),
        "tests/parallel/test_error_feedback.py::test_a_rank_that_fails_fails_the_others",
    ),
    "collectives.tune": "tests/collectives/api/test_tuning.py::test_a_rank_that_is_lost_meanwhile",
    "parallel.Pipeline": (
        "tests/parallel/pipeline/test_failures.py::test_a_lost_stage_is_replaced_and_training_goes_on"
    ),
    "parallel.spawn": "tests/parallel/test_processes.py::test_a_rank_that_ends_by_itself_is_named",
    "rpc.idempotent": "tests/rpc/verbs/test_retry.py",
    "rpc.publish": "tests/rpc/verbs/test_publish.py",
    "doctor.examine": "tests/doctor/test_examination.py",
    **dict.fromkeys(
        ("parallel.DistributedOptimizer.join", "parallel.DistributedOptimizer.leave"),
        "tests/parallel/optimizer/test_faults.py::"
        "test_nobody_waits_where_the_worker_is_lost_that_made_the_optimizer",
    ),
    **dict.fromkeys(
        (
            "parallel.DistributedOptimizer.add_param_group",
            "parallel.DistributedOptimizer.load_state_dict",
            "parallel.DistributedOptimizer.state_dict",
        ),
        "tests/parallel/optimizer/test_faults.py::test_an_owner_lost_that_is_asked",
    ),
}

WAITS_FOR_NOBODY = {
    "a value, its class, or a constant": """
        doctor.DoctorPair doctor.DoctorProblem doctor.DoctorReport doctor.DoctorWorker
        rpc.CurrentCall rpc.Limits rpc.RpcOptions rpc.RpcStatistics rpc.TlsOptions
        rpc.WorkerInfo
        collectives.Backend collectives.GroupStatistics collectives.Link
        collectives.MessageBackend collectives.ReduceOp collectives.Thresholds
        parallel.CommHook parallel.ErrorFeedback parallel.GradientBucket
        parallel.functional parallel.LossScale parallel.pipeline parallel.ProcessContext
        parallel.StepFailure parallel.StepResult""",
    "answered by this worker": """
        rpc.current_call rpc.expose rpc.get_worker_info rpc.get_worker_infos
        rpc.is_initialized
        rpc.on_join rpc.on_leave rpc.on_loss rpc.register_type rpc.remote_traceback rpc.statistics
        rpc.unpublish
        dist_autograd.context dist_autograd.get_gradients
        collectives.get_rank collectives.get_world_size collectives.world_group
        collectives.get_global_rank collectives.get_group_rank collectives.get_node_local_rank
        collectives.get_process_group_ranks collectives.is_initialized
        parallel.distributed_sampler parallel.fork parallel.wait
        parallel.DistributedDataParallel.register_comm_hook
        rpc.Future.add_done_callback rpc.Future.cancel rpc.Future.cancelled rpc.Future.done
        rpc.Future.exception rpc.Future.get_loop rpc.Future.remove_done_callback rpc.Future.result
        rpc.Future.set_exception rpc.Future.set_result
        rpc.Future.try_set_exception rpc.Future.try_set_result
        rpc.Future.value
        rpc.RRef.confirmed_by_owner rpc.RRef.is_owner rpc.RRef.owner
        rpc.RRef.owner_name rpc.RRef.release
        rpc.Stream.aclose rpc.Stream.cancel rpc.Stream.close
        collectives.Work.add_done_callback collectives.Work.done collectives.Work.exception
        parallel.DistributedOptimizer.scale_loss parallel.step_failure
        parallel.RemoteModule.apply parallel.RemoteModule.children
        parallel.RemoteModule.get_module_rref
        parallel.RemoteModule.register_forward_hook parallel.RemoteModule.register_forward_pre_hook
        parallel.RemoteModule.register_full_backward_hook
        parallel.RemoteModule.modules parallel.RemoteModule.named_children
        parallel.RemoteModule.named_modules
        parallel.DistributedDataParallel.forward parallel.DistributedDataParallel.no_sync
        parallel.DistributedDataParallel.named_children""",
    "inherited by what is of this process; what it has of others is a RemoteModule's": """
        parallel.DistributedDataParallel.add_module parallel.DistributedDataParallel.apply
        parallel.DistributedDataParallel.buffers parallel.DistributedDataParallel.children
        parallel.DistributedDataParallel.register_forward_hook
        parallel.DistributedDataParallel.register_forward_pre_hook
        parallel.DistributedDataParallel.register_full_backward_hook
        parallel.DistributedDataParallel.requires_grad_
        parallel.DistributedDataParallel.eval parallel.DistributedDataParallel.load_state_dict
        parallel.DistributedDataParallel.modules parallel.DistributedDataParallel.named_buffers
        parallel.DistributedDataParallel.named_modules
        parallel.DistributedDataParallel.named_parameters
        parallel.DistributedDataParallel.parameters
        parallel.DistributedDataParallel.register_buffer
        parallel.DistributedDataParallel.state_dict parallel.DistributedDataParallel.state_shapes
        parallel.DistributedDataParallel.to parallel.DistributedDataParallel.train
        parallel.DistributedDataParallel.zero_grad""",
    "refused, since what it is about is elsewhere": """
        parallel.RemoteModule.add_module parallel.RemoteModule.buffers
        parallel.RemoteModule.named_buffers parallel.RemoteModule.named_parameters
        parallel.RemoteModule.parameters parallel.RemoteModule.register_buffer""",
}


def public_verbs() -> set[str]:
    """Returns every public name of the modules, and every public method of the classes."""
    names = {f"{_short(module)}.{name}" for module in MODULES for name in module.__all__}
    for cls in CLASSES:
        (place,) = {f"{_short(each)}" for each in MODULES if getattr(each, cls.__name__, None)}
        names |= {f"{place}.{cls.__name__}.{method}" for method in _methods(cls)}
    return names


def covered() -> set[str]:
    """Returns the names that rows of the table stand for."""
    return {name for row in ROWS.values() for name in row.covers}


def table() -> str:
    """Returns the table as the README shows it."""
    lines = [
        "| Verb | Case | Waits | Ended by the loss of | Told there: nobody waits any more |",
        "|---|---|---|---|---|",
    ]
    for row in ROWS.values():
        verbs = ", ".join(f"`{name}`" for name in row.covers)
        ends = ", ".join(f"{who} (`{error.__name__}`)" for who, error in row.ends.items())
        told = dict.fromkeys(who for each in row.cancels.values() for who in each)
        cells = (verbs, row.name, ", ".join(row.at), ends or "nobody", ", ".join(told))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _methods(cls: type) -> Iterator[str]:
    """Yields inherited ones, too: whoever has the object may call them."""
    found = {
        name: value for base in reversed(cls.__mro__[:-1]) for name, value in vars(base).items()
    }
    for name, value in found.items():
        is_method = callable(value) or isinstance(value, classmethod | staticmethod)
        if (is_method and not name.startswith("_")) or name in SPECIAL:
            yield name


def _short(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]
