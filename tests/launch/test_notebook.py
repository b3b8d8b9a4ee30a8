"""LocalWorkers in a real notebook kernel: what goes wrong there, and an interrupt."""

from __future__ import annotations

import re

import pytest

from tests.conftest import Programs
from tests.launch.test_run import wait_until_gone

# Runs cells in one kernel, prints what each shows, interrupts the one that says so. What a worker
# writes is shown when it comes, perhaps between two cells.
SESSION = """
import asyncio, sys
from jupyter_client.asynchronous import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager

shown = []

async def show(kc):
    message = await kc.get_iopub_msg(timeout=40)
    content = message["content"]
    shown.append(content.get("text") or content.get("data", {}).get("text/plain") or "")
    print(shown[-1], flush=True)
    return message

async def run(km, kc, cell):
    request, idle = kc.execute(cell), False
    while not idle:
        message = await show(kc)
        if "waiting" in shown[-1] and "interrupt" in cell:
            await km.interrupt_kernel()
        idle = (message["parent_header"].get("msg_id") == request
                and message["content"].get("execution_state") == "idle")
    answered = None
    while answered != request:  # ipykernel 6 has more answers to wait_for_ready than one
        message = await kc.get_shell_msg(timeout=40)
        answered, status = message["parent_header"].get("msg_id"), message["content"]
    print(status["status"], status.get("ename", ""), status.get("evalue", ""), flush=True)

async def main():
    km = AsyncKernelManager(kernel_name="python3")
    await km.start_kernel(cwd=sys.argv[1])
    kc = km.client()
    kc.start_channels()
    await kc.wait_for_ready(timeout=40)
    for cell in open(sys.argv[2]).read().split("#---\\n"):
        await run(km, kc, cell)
    while "[worker1] last words" not in "".join(shown):
        await show(kc)
    await km.shutdown_kernel()

asyncio.run(main())
"""

CELLS = """
import os, sys
import numpy as np
from dataclasses import dataclass
from telegrad import launch, rpc
agent = rpc.init_rpc("me")
workers = launch.LocalWorkers(1)
def double(x): return 2 * x
@dataclass
class Config: x: int
#---
rpc.rpc_sync("worker1", double, (1,))
#---
%%writefile code_of_cell.py
import os, sys
def double(x): return 2 * x.x
def speak(words):
    print(words); sys.stdout.flush()
    return os.getpid()
#---
import code_of_cell
print(f"result {rpc.rpc_sync(1, code_of_cell.speak, ('hello from a worker',))}")
#---
rpc.rpc_sync("worker1", code_of_cell.double, (Config(1),))
#---
import asyncio
print(f"awaited {await rpc.rpc_async(1, np.square, (3,))} {await asyncio.sleep(0)}")
#---
never = rpc.Future()
print("waiting, interrupt", flush=True)
never.wait()
#---
print(f"still {rpc.rpc_sync(1, np.square, (4,))}")
print(f"pid={rpc.rpc_sync(1, code_of_cell.speak, ('last words',))}")
"""


@pytest.mark.long  # tests/guides/test_quickstart.py runs local workers in a real kernel in make test
def test_in_a_notebook(programs: Programs) -> None:
    cells = programs.script(CELLS, "cells.txt")
    session = programs.script(SESSION, "session.py")
    output = programs.run(["python", session, programs.directory, cells])
    assert (
        "error EncodeError __main__.double is defined in a notebook or at a prompt, which other "
        "workers cannot import; move it to a cell that begins with `%%writefile mycode.py`, run "
        "`from mycode import double`, and call that"
    ) in output
    assert "[worker1] hello from a worker" in output
    assert re.search(r"result \d+", output)
    assert "put it into a module that both workers import" in output
    assert "awaited 9 None" in output
    assert "error KeyboardInterrupt" in output
    assert "still 16" in output
    wait_until_gone([int(pid) for pid in re.findall(r"pid=(\d+)", output)])
