"""A worker whose functions a program in another language calls: see client.mjs.

    python examples/polyglot/server.py JOB_FILE
    node examples/polyglot/client.mjs JOB_FILE

Both find the token as every worker does: TELEGRAD_TOKEN, TELEGRAD_TOKEN_FILE, or the user's own.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import numpy as np

from telegrad import rpc
from telegrad.types import Array


@rpc.expose
def scale(x: Array, factor: float) -> Array:
    """Returns an array of the same dtype."""
    return np.multiply(x, factor, dtype=x.dtype)


@rpc.expose
def column_sums(matrix: object) -> dict[str, float]:
    """Returns the sum of each column, by its number."""
    if not isinstance(matrix, np.ndarray) or matrix.ndim != 2:
        raise ValueError(f"a matrix was expected, not {matrix!r}")
    return {str(j): float(total) for j, total in enumerate(matrix.sum(axis=0))}


if __name__ == "__main__":
    gone = threading.Event()
    job_file = Path(sys.argv[1]).absolute()
    options = rpc.RpcOptions(callables="exposed")
    init_method = f"file://{job_file}"
    with rpc.init_rpc("server", rank=0, world_size=1, init_method=init_method, options=options):
        rpc.on_leave(lambda worker: gone.set())
        rpc.on_loss(lambda worker, error: gone.set())
        print("serving until somebody has come and gone", flush=True)
        gone.wait()
    print("served")
