"""Init method `slurm://`: Slurm's environment says where the job is. No command is run.

    rank          SLURM_PROCID
    world size    SLURM_STEP_NUM_TASKS, else SLURM_NTASKS
    host          the first of SLURM_STEP_NODELIST, else of SLURM_JOB_NODELIST: rank 0 runs there,
                  unless srun distributes the tasks in another order
    port          from SLURM_JOB_ID and SLURM_STEP_ID, unless ?port= says another
    job           `slurm-` and both numbers

If there are other nodes, rank 0 listens beyond loopback even where its own name means loopback, as
Debian's `/etc/hosts` has it (127.0.1.1): the others find it by that name.

Two jobs whose ports are equal refuse each other by the job's name.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from telegrad.rendezvous.job_address import JobAddress, SettingsReader

FIRST_PORT: Final = 15_000
PORTS: Final = 16_000  # up to 30,999: below those that Linux gives to outbound connections
STEP_STRIDE: Final = 101  # so that the steps of one job and jobs that follow each other differ

# A name up to a bracket or comma, or a bracket with numbers: `rack[1-2]node[01-03,7]`.
_PIECE: Final = re.compile(r"(?P<text>[^][,\s]+)|\[(?P<numbers>[0-9,-]+)\]")
_RANGE: Final = re.compile(r"(\d+)(?:-(\d+))?")


def read_slurm(
    url: str, *, rank: int | None, world_size: int | None, environ: Mapping[str, str]
) -> JobAddress:
    """Returns the address of the job that `srun` started; an `InitMethod`.

    Args:
        url: `slurm://`, or `slurm://?port=29500`.
        rank: Overrides `SLURM_PROCID`.
        world_size: Overrides the number of tasks.
        environ: The environment.

    Raises:
        ValueError: Something is missing or malformed; the message names each such thing.

    >>> environ = {
    ...     "SLURM_PROCID": "1",
    ...     "SLURM_NTASKS": "4",
    ...     "SLURM_JOB_ID": "7",
    ...     "SLURM_JOB_NODELIST": "node[1-3,7]",
    ... }
    >>> address = read_slurm("slurm://", rank=None, world_size=None, environ=environ)
    >>> address.coordinator_endpoint, address.rank, address.world_size
    ('grpc://node1:15007', 1, 4)
    """
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.netloc or parts.path not in ("", "/") or parts.fragment or set(query) - {"port"}:
        raise ValueError(
            f"init_method {url!r} is not known; write 'slurm://' or 'slurm://?port=29500'"
        )
    settings = SettingsReader(environ)
    tasks = "SLURM_STEP_NUM_TASKS" if environ.get("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"
    nodes = "SLURM_STEP_NODELIST" if environ.get("SLURM_STEP_NODELIST") else "SLURM_JOB_NODELIST"
    found_rank = settings.integer("SLURM_PROCID") if rank is None else rank
    found_size = settings.integer(tasks) if world_size is None else world_size
    job = settings.integer("SLURM_JOB_ID")
    step = settings.integer("SLURM_STEP_ID") if environ.get("SLURM_STEP_ID") else 0
    listed = settings.text(nodes)
    settings.finish("run it under `srun`, or write another init_method")
    port = FIRST_PORT + (job + STEP_STRIDE * step) % PORTS
    if "port" in query:
        of_url = SettingsReader(query, what="parameter ", where=f" of init_method {url!r}")
        port = of_url.port("port")
        of_url.finish("write 'slurm://?port=29500'")
    try:
        host, *others = islice(expand_nodes(listed), 2)
    except ValueError as error:
        raise ValueError(f"{nodes} cannot be read: {error}") from error
    found = JobAddress.at(
        host, port, rank=found_rank, world_size=found_size, job=f"slurm-{job}.{step}"
    )
    return dataclasses.replace(found, several_hosts=bool(others))


def expand_nodes(text: str) -> Iterator[str]:
    """Yields the hosts of a node list, in its order.

    >>> list(expand_nodes("node[1-3,7]"))
    ['node1', 'node2', 'node3', 'node7']
    >>> list(expand_nodes("login,r[1-2]n[09-10].lan"))
    ['login', 'r1n09.lan', 'r1n10.lan', 'r2n09.lan', 'r2n10.lan']

    Raises:
        ValueError: It is no node list.
    """
    place, pieces = 0, list[list[str] | str]()
    if not text:
        raise ValueError("it names no host")
    while place < len(text):
        found = _PIECE.match(text, place)
        if found is None:
            raise ValueError(f"{text!r} is no list of hosts, such as 'node[1-3,7]'")
        pieces.append(found["text"] or found["numbers"].split(","))
        place = found.end()
        if place == len(text) or text[place] == ",":
            yield from _combined(text, pieces)
            pieces.clear()
            place += 1
            if place == len(text):
                raise ValueError(f"{text!r} ends with a comma")


def _combined(text: str, pieces: list[list[str] | str]) -> Iterator[str]:
    """Yields every combination of the numbers in brackets with the text around them."""
    if not pieces:
        yield ""
        return
    first, *rest = pieces
    for head in [first] if isinstance(first, str) else _numbers(text, first):
        for tail in _combined(text, rest):
            yield head + tail


def _numbers(text: str, ranges: list[str]) -> Iterator[str]:
    for each in ranges:
        found = _RANGE.fullmatch(each)
        if found is None or (found[2] and int(found[1]) > int(found[2])):
            raise ValueError(f"{text!r} has {each!r} in brackets instead of '1-3' or '7'")
        for number in range(int(found[1]), int(found[2] or found[1]) + 1):
            yield f"{number:0{len(found[1])}d}"
