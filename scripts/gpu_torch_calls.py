"""One of two processes that time calls of torch.distributed.rpc with tensors of one GPU.

    gpu_torch_calls.py RANK PLACE CALLS BYTES...    rank 0 prints its times as a line of JSON

Both meet at the file PLACE. Without a GPU the tensors are in host memory.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from statistics import median
from typing import Any

WARM_UP = 5
NAMES = ("caller", "callee")


def main() -> int:
    """Runs the command; returns its exit code."""
    rank, place, calls, *sizes = sys.argv[1:]
    torch: Any = importlib.import_module("torch")
    rpc: Any = importlib.import_module("torch.distributed.rpc")
    gpu = torch.cuda.is_available()
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"file://{place}",
        rpc_timeout=30,
        device_maps={NAMES[1]: {0: 0}} if gpu and rank == "0" else None,
    )
    rpc.init_rpc(NAMES[int(rank)], rank=int(rank), world_size=2, rpc_backend_options=options)
    if rank == "0":
        found = []
        for size in map(int, sizes):
            tensor = torch.ones(size, dtype=torch.uint8, device="cuda:0" if gpu else "cpu")

            def once(tensor: Any = tensor) -> float:
                began = time.perf_counter()
                rpc.rpc_sync(NAMES[1], torch.clone, args=(tensor,))
                if gpu:
                    torch.cuda.synchronize()
                return 1e3 * (time.perf_counter() - began)

            found.append(median([once() for _ in range(WARM_UP + int(calls))][WARM_UP:]))
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
    rpc.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
