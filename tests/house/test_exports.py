"""Checks that the public names are those of the documented interface, and `__all__` says them all.

That `__all__` is sorted is ruff's to check (RUF022).
"""

from __future__ import annotations

import importlib
import types
from pathlib import Path

import numpy as np
import pytest

import telegrad as tg
from telegrad import rpc

PACKAGE = Path(__file__).parents[2] / "telegrad"
FACES = sorted(
    ".".join(path.parent.relative_to(PACKAGE.parent).parts) for path in PACKAGE.rglob("__init__.py")
)

# The interface that examples, documents and users rely on.
DOCUMENTED: dict[str, str] = {
    "telegrad": """Function Tensor as_tensor detect_anomaly enable_grad from_dlpack grad
        elementwise_grad gradcheck gradgradcheck hessian hvp jacobian jvp manual_seed nn no_grad numpy optim recompute saved_values scipy
        tensor value_and_grad vjp""",
    "telegrad.nn": """AdaptiveAvgPool2d AvgPool2d BCELoss BCEWithLogitsLoss BatchNorm1d BatchNorm2d Conv1d Conv2d
        CrossEntropyLoss Dropout ELU Flatten GELU GLU GroupNorm Hardtanh HuberLoss Identity IncompatibleKeys KLDivLoss L1Loss LayerNorm LeakyReLU Linear
        LogSigmoid LogSoftmax MSELoss MaxPool2d Mish Module NLLLoss Parameter RMSNorm ReLU ReLU6 SELU Sequential
        SiLU Sigmoid SmoothL1Loss Softmax Softplus Softsign Tanh functional init Embedding GRU GRUCell LSTM LSTMCell
        ModuleDict ModuleList MultiheadAttention ParameterList RNN RNNCell TransformerEncoderLayer autocast utils""",
    "telegrad.doctor": "DoctorPair DoctorProblem DoctorReport DoctorWorker examine",
    "telegrad.optim": """Adagrad Adam AdamW CosineAnnealingLR ExponentialLR HasGroups LambdaLR LinearLR LossScale MultiStepLR OneCycleLR
        Optimizer RMSprop ReduceLROnPlateau SGD Scheduler SequentialLR State StepLR""",
    "telegrad.scipy": "special",
    "telegrad.rpc": """Agent CurrentCall Future Limits RRef RpcOptions RpcStatistics WorkerInfo as_completed
        collect_all current_call expose first_n functions gather get_worker_info get_worker_infos idempotent init_rpc
        is_initialized lookup on_join on_leave on_loss publish register_type remote
        remote_traceback rpc_async rpc_sync shutdown statistics Stream stream TlsOptions to_thread unpublish wait_all""",
    "telegrad.dist_autograd": "backward context get_gradients grad",
    "telegrad.collectives": """Backend GroupStatistics Link MessageBackend P2POp ProcessGroup ReduceOp Thresholds Work all_gather all_gather_object
        all_gather_single all_reduce all_to_all all_to_all_single barrier batch_isend_irecv broadcast
        broadcast_object_list coalesced destroy_process_group gather gather_object get_global_rank
        get_group_rank get_node_local_rank get_process_group_ranks get_rank get_world_size
        init_process_group irecv is_initialized isend monitored_barrier new_group new_subgroups
        new_subgroups_by_enumeration recv recv_object_list reduce reduce_scatter reduce_scatter_single
        scatter scatter_object_list send send_object_list shrink_group split_group tune world_group""",
    "telegrad.parallel": """CommHook DistributedDataParallel DistributedOptimizer ErrorFeedback GradientBucket LossScale
        Pipeline ProcessContext RemoteModule StepFailure StepResult all_reduce_rows allreduce_hook bfloat16_compress_hook distributed_sampler
        float16_compress_hook fork functional int8_compress_hook parameter_rrefs spawn step_failure top_k_compress_hook
        wait""",
    "telegrad.parallel.pipeline": """Action Checked Costs Kind Pipeline PipelineOptimizer PipelineReport Pop Schedule
        ScheduleError Span Stash Timeline as_svg as_text check make_schedule simulate""",
    "telegrad.data": "DistributedSampler",
    "telegrad.testing": """Cluster Fault FaultPlan FaultRule FaultStatistics FaultyNetwork
        FaultyTransport Injected LeakError faulty_network held_references no_leaked_children
        no_leaked_descriptors no_leaked_references no_leaked_tasks no_leaked_threads""",
    "telegrad.launch": "LocalWorkers",
    "telegrad.rendezvous": "FileStore InitMethod JobAddress MemoryStore PrefixStore Store TCPStore",
    "telegrad.errors": """AgentForkedError AlreadyInitializedError AuthenticationError AutogradError
        BlockingCallError CallCancelledError CallRefusedError CallTimeoutError CollectiveMismatchError ContextError
        ContextMismatchError DecodeError DuplicateNameError EncodeError EvictedError
        FunctionNotFoundError InvalidUseError JoinCancelledError NotEnoughResultsError NotInitializedError OwnerLostError
        PipelineError PoolExhaustedError QueueEmptyError RemoteError
        RendezvousError RendezvousTimeoutError ScheduleError TelegradError UnknownWorkerError UnreachableWorkerError ValueNotFoundError
        WaitCycleError WorkerLostError""",
}


def public_names(module: types.ModuleType) -> set[str]:
    """What a reader sees in a face: its names, without submodules that were merely loaded."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and name not in {"TYPE_CHECKING", "annotations"}
        and not isinstance(value, types.ModuleType)
    }


@pytest.mark.parametrize("name", FACES)
def test_a_face_lists_all_of_its_names_once(name: str) -> None:
    module = importlib.import_module(name)
    listed = list(getattr(module, "__all__", []))
    assert len(listed) == len(set(listed))
    assert all(hasattr(module, entry) for entry in listed)
    assert public_names(module) <= set(listed)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_documented_name_is_there(name: str) -> None:
    module = importlib.import_module(name)
    missing = set(DOCUMENTED[name].split()) - set(module.__all__)
    assert not missing


def test_the_face_of_rpc_shows_users_what_is_theirs_alone() -> None:
    face = importlib.import_module("telegrad.rpc")
    assert set(face.__all__) == {*DOCUMENTED["telegrad.rpc"].split(), "AsCompleted"}


USERS_CLASSES: dict[type, str] = {
    rpc.Agent: """as_current ended get_worker_info get_worker_infos name options rank remote
        rpc_async rpc_sync shutdown statistics stream world_size""",
    rpc.Future: """add_done_callback age cancel cancelled done exception get_loop
        remove_done_callback result set_exception set_result then try_set_exception try_set_result
        value wait""",
    rpc.RRef: """backward confirmed_by_owner is_owner local_value owner owner_name release remote
        rpc_async rpc_stream rpc_sync to_here""",
}


@pytest.mark.parametrize("cls", USERS_CLASSES, ids=lambda cls: cls.__name__)
def test_a_class_shows_the_methods_that_users_call(cls: type) -> None:
    assert {name for name in dir(cls) if name[0] != "_"} == set(USERS_CLASSES[cls].split())


def test_a_tensor_shows_what_users_of_numpy_and_torch_know() -> None:
    shown = {name for name in dir(tg.Tensor) if name[0] != "_"} - set(dir(np.ndarray))
    assert shown == {
        "backward",
        "clone",
        "cupy",
        "detach",
        "grad",
        "grad_fn",
        "is_leaf",
        "numpy",
        "output_nr",
        "register_hook",
        "register_post_accumulate_hook",
        "requires_grad",
        "requires_grad_",
        "retain_grad",
        "to",
    }
