"""`telegrad tune`: measures the thresholds of collectives on a job's hosts, and writes a table."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from telegrad import collectives
from telegrad.errors import TelegradError
from telegrad.launch.run import RunOptions, run
from telegrad.rpc import RpcOptions

TABLE: Final = "thresholds.toml"
EXAMPLE = """\
example, on each of two hosts (--node-rank 1 on the other one):
  telegrad tune --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --master-port 29500
  export TELEGRAD_THRESHOLDS=$PWD/thresholds.toml

Each host gets the table. On one host the workers send messages by TCP, as between hosts: there,
ranks that share memory use no thresholds.
"""


def add_tune(
    commands: argparse._SubParsersAction[Any],
    add_nodes: Callable[[argparse.ArgumentParser], None],
) -> None:
    """Adds the command to a parser.

    Args:
        commands: The subcommands of `telegrad`.
        add_nodes: Adds the options by which hosts find each other, as for `telegrad run`.
    """
    parser = commands.add_parser(
        "tune",
        help="measure which algorithms of collectives are the quickest here",
        description="Measures at which sizes collectives should change their algorithms.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_nodes(parser)
    parser.add_argument(
        "--output", default=TABLE, metavar="FILE", help=f"the table to write (default: {TABLE})"
    )
    parser.add_argument(
        "--longest", type=int, metavar="BYTES", help="the longest array to send (default: 16 MiB)"
    )
    parser.add_argument(
        "--repeats", type=int, metavar="K", help="how often each size is sent (default: 7)"
    )


def problem_with_tune(options: argparse.Namespace) -> str | None:
    """Returns the problem with the command's own options, in words; None if there is none."""
    if options.nproc_per_node * options.nnodes < 2:
        return "--nproc-per-node must be at least 2 on one host: one rank sends nothing"
    return None


def tune(options: argparse.Namespace, run_options: RunOptions) -> int:
    """Runs the workers with options that were checked; returns the exit code."""
    code = run(run_options)
    if code == 0:
        sys.stdout.write(f"wrote {options.output}; set TELEGRAD_THRESHOLDS to its path\n")
    return code


def command_of(options: argparse.Namespace) -> list[str]:
    """Returns the command of each worker."""
    asked = {"longest_bytes": options.longest, "repeats": options.repeats}
    settings = {key: value for key, value in asked.items() if value is not None}
    arguments = [str(Path(options.output).absolute()), str(options.nnodes), json.dumps(settings)]
    # Not by -m: the package imports this module, and Python warns of a module that runs twice.
    program = f"import sys; from {__name__} import main; sys.exit(main(*sys.argv[1:]))"
    return [sys.executable, "-u", "-c", program, *arguments]


# -- the program of each worker ------------------------------------------------------------------


def main(file: str, nodes: str, settings: str) -> int:
    """Measures together with the others; the first worker of each host writes the table.

    Args:
        file: The table.
        nodes: The number of hosts.
        settings: The arguments of `collectives.tune`, as JSON.
    """
    network = nodes == "1"  # as between hosts
    try:
        options = RpcOptions(direct="tcp" if network else True, callables="exposed")
        group = collectives.init_process_group(options=options)
        thresholds = collectives.tune(**json.loads(settings))
        if os.environ.get("LOCAL_RANK", "0") == "0":
            where = "by TCP on" if network else "from"
            thresholds.save(
                file, f"telegrad tune, {group.size} ranks, {where} {socket.gethostname()}"
            )
        collectives.destroy_process_group()
    except (TelegradError, OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0
