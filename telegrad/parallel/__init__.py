"""Training over several workers: copies of one model, and parameters that live anywhere."""

from __future__ import annotations

from telegrad.optim import LossScale
from telegrad.parallel import functional, pipeline
from telegrad.parallel.ddp import DistributedDataParallel
from telegrad.parallel.forking import fork, wait
from telegrad.parallel.hooks import (
    CommHook,
    ErrorFeedback,
    GradientBucket,
    allreduce_hook,
    bfloat16_compress_hook,
    float16_compress_hook,
    int8_compress_hook,
    top_k_compress_hook,
)
from telegrad.parallel.optimizer.dist_optimizer import DistributedOptimizer
from telegrad.parallel.optimizer.owners import StepFailure, StepResult, step_failure
from telegrad.parallel.pipeline import Pipeline
from telegrad.parallel.processes import ProcessContext, spawn
from telegrad.parallel.remote_module import RemoteModule, parameter_rrefs
from telegrad.parallel.sampling import distributed_sampler
from telegrad.parallel.sparse_rows import all_reduce_rows

__all__ = [
    "CommHook",
    "DistributedDataParallel",
    "DistributedOptimizer",
    "ErrorFeedback",
    "GradientBucket",
    "LossScale",
    "Pipeline",
    "ProcessContext",
    "RemoteModule",
    "StepFailure",
    "StepResult",
    "all_reduce_rows",
    "allreduce_hook",
    "bfloat16_compress_hook",
    "distributed_sampler",
    "float16_compress_hook",
    "fork",
    "functional",
    "int8_compress_hook",
    "parameter_rrefs",
    "pipeline",
    "spawn",
    "step_failure",
    "top_k_compress_hook",
    "wait",
]


def __dir__() -> list[str]:
    """Returns the public names, for completion."""
    return __all__
