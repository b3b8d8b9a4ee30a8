"""torch's pipelines (torch.distributed.pipelining, Gloo): the steps of pipeline_steps.py.

python torch_pipeline.py step [--seconds 5]
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from typing import Any

import pipeline_steps as steps
import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.distributed import pipelining

SCHEDULES = {"gpipe": pipelining.ScheduleGPipe, "1f1b": pipelining.Schedule1F1B}
LOSS = nn.functional.cross_entropy


def model() -> nn.Sequential:
    """Returns the network."""
    layers: list[nn.Module] = []
    for weight in steps.weights():
        layer = nn.Linear(steps.WIDTH, steps.WIDTH)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(weight))
            layer.bias.zero_()
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def measure(rank: int, seconds: float, port: int) -> None:
    """Runs one rank; rank 0 reports."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    whole = model()
    inputs, labels = map(torch.from_numpy, steps.data())
    found: dict[str, Any] = {}

    def one() -> None:
        whole.zero_grad()
        LOSS(whole(inputs), labels).backward()

    def by_parts() -> None:
        whole.zero_grad()
        parts = zip(
            inputs.chunk(steps.MICRO_BATCHES), labels.chunk(steps.MICRO_BATCHES), strict=True
        )
        for x, y in parts:
            (LOSS(whole(x), y) / steps.MICRO_BATCHES).backward()

    if rank == 0:
        found["one process"] = steps.timed(one, seconds)
        found["one process, micro-batches"] = steps.timed(by_parts, seconds)
    dist.barrier()
    part = whole[:4] if rank == 0 else whole[4:]
    for name in steps.SCHEDULES:
        stage = pipelining.PipelineStage(part, rank, 2, torch.device("cpu"))
        schedule = SCHEDULES[name](stage, n_microbatches=steps.MICRO_BATCHES, loss_fn=LOSS)
        more = torch.ones(1)

        def step(schedule: Any = schedule, more: Any = more) -> None:
            dist.broadcast(more, 0)  # the other rank hears if there is another step
            part.zero_grad()
            if rank == 0:
                schedule.step(inputs)
            else:
                schedule.step(target=labels, losses=[])
            dist.barrier()  # the end of the step at both, as Pipeline.step returns it

        if rank == 0:
            found[name] = steps.timed(step, seconds)
            more.zero_()
            dist.broadcast(more, 0)
        else:
            while True:
                dist.broadcast(more, 0)
                if not more:
                    break
                part.zero_grad()
                schedule.step(target=labels, losses=[])
                dist.barrier()
    if rank == 0:
        sys.stdout.write(json.dumps({"version": torch.__version__, "figures": found}) + "\n")
        sys.stdout.flush()
    dist.destroy_process_group()


def main() -> None:
    """Starts both ranks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["step"])
    parser.add_argument("--seconds", type=float, default=5.0)
    told = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    multiprocessing.spawn(measure, (told.seconds, port), nprocs=2)


if __name__ == "__main__":
    main()
