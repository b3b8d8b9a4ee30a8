"""All workers call all others: telegrad or torch, whose verbs have the same names."""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import secrets
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import growth  # this module by its name: what runs is called __main__, and calls go by name
import measure
import passes

LIBRARIES = {"telegrad": ("telegrad_passes", "Telegrad"), "torch": ("torch_passes", "Torch")}
WINDOW = 256  # calls of one worker in flight, spread over the others
WARM_UP = 0.2  # of the time, in which connections are made


def library(name: str) -> passes.Library:
    """Returns what a peer calls things."""
    module, made = LIBRARIES[name]
    found: passes.Library = getattr(importlib.import_module(module), made)()
    return found


def call_all(name: str, me: int, workers: int, seconds: float) -> dict[str, float]:
    """Calls all other workers for so long; returns calls a second, and what this process holds."""
    rpc = library(name).rpc
    others = [f"worker{rank}" for rank in range(workers) if rank != me]
    to = [others[i % len(others)] for i in range(max(WINDOW, len(others)))]

    def window() -> None:
        for each in [rpc.rpc_async(other, measure.nothing) for other in to]:
            each.wait()

    _repeat(window, WARM_UP * seconds)
    done, elapsed = _repeat(window, seconds)
    return {"per_second": done * len(to) / elapsed, **memory()}


def _repeat(window: Any, seconds: float) -> tuple[int, float]:
    done, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds or not done:
        window()
        done += 1
    return done, elapsed


def memory() -> dict[str, float]:
    """Returns what this process has resident, and its share where pages are shared, in MiB."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    sizes = {
        name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)
    }
    return {"resident": sizes["Rss"] / 1024, "proportional": sizes["Pss"] / 1024}


def serve(name: str, rank: int, workers: int, place: Path, secret: str) -> None:
    """Any worker but the first: serves until that one shuts down."""
    peer = library(name)
    peer.join(rank, workers, place, secret)
    peer.rpc.shutdown()


def main() -> None:
    """Starts the other workers, has all of them call, and reports."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", choices=list(LIBRARIES), required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0)
    told = parser.parse_args()
    peer, n = library(told.library), told.workers
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as directory:
        job = (n, Path(directory) / "store", secrets.token_hex(16))
        processes = [
            spawn.Process(target=growth.serve, args=(told.library, rank, *job), daemon=True)
            for rank in range(1, n)
        ]
        began = time.perf_counter()
        for process in processes:
            process.start()
        peer.join(0, *job)
        startup = time.perf_counter() - began
        asked = [
            peer.rpc.rpc_async(
                f"worker{rank}", growth.call_all, (told.library, rank, n, told.seconds)
            )
            for rank in range(1, n)
        ]
        reports = [call_all(told.library, 0, n, told.seconds), *[each.wait() for each in asked]]
        peer.rpc.shutdown()
        for process in processes:
            process.join()
    figures = {
        "all": {"per_second": sum(each["per_second"] for each in reports)},
        **{
            kind: {"mib": sum(each[kind] for each in reports) / n}
            for kind in ("resident", "proportional")
        },
        "start": {"ms": startup * 1e3},
    }
    sys.stdout.write(json.dumps({"version": peer.version, "figures": figures}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    os.environ.setdefault("TP_SOCKET_IFNAME", "lo")  # else torch asks the name of this host
    main()
