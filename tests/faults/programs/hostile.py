"""A worker that does what the test at the other end of an inherited pipe tells it.

Arguments: the descriptor of the pipe, and options of `init_rpc` as JSON; with `"apart": true` among
them the worker uses no Unix sockets, as if its system had none. What `env://` reads says which
worker it is. On SIGUSR1 it writes down where its threads are.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import signal
import socket
import sys
from multiprocessing.connection import Connection

from telegrad import rpc
from telegrad.testing.worker_process import serve

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    faulthandler.register(signal.SIGUSR1)
    descriptor, text = sys.argv[1:]
    options = json.loads(text)
    if options.pop("apart", False):
        del socket.SO_PEERCRED
    serve(Connection(int(descriptor)), rpc.RpcOptions(**options))
