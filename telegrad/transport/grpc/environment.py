"""Sets the variables that gRPC reads at its import; `transport/__init__.py` imports this first.

gRPC has fork handlers of its own, which are on by default, and they crash a forked child in a fifth
of the cases or more (1.85). They are chosen while `grpc` is imported and at no other time.

Its event engine hands each event from one of its threads to the next: a message there and back
wakes 7 threads at each end with it, 4 without it, and it saves nothing in return.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Container, MutableMapping

logger = logging.getLogger(__name__)

FORK_SUPPORT = "GRPC_ENABLE_FORK_SUPPORT"
VERBOSITY, TRACE = "GRPC_VERBOSITY", "GRPC_TRACE"
EXPERIMENTS = "GRPC_EXPERIMENTS"
# Without it, the thread that waits for completions reads the sockets itself.
NO_EVENT_ENGINE = "-event_engine_client,-event_engine_listener"


def set_grpc_environment(
    environ: MutableMapping[str, str], imported: Container[str] = sys.modules
) -> None:
    """Sets the variables that the user has not set, as long as that has an effect.

    Args:
        environ: The environment of the process.
        imported: The modules that are imported already.

    >>> environ = {"GRPC_ENABLE_FORK_SUPPORT": "1"}
    >>> set_grpc_environment(environ, imported=())
    >>> environ["GRPC_ENABLE_FORK_SUPPORT"], environ["GRPC_VERBOSITY"]
    ('1', 'ERROR')
    """
    if "grpc" in imported:
        if FORK_SUPPORT not in environ:
            logger.debug(
                "grpc was imported before telegrad, with its fork handlers: children of a fork "
                "may crash; set %s=0 before either is imported",
                FORK_SUPPORT,
            )
        return
    environ.setdefault(FORK_SUPPORT, "0")
    environ.setdefault(EXPERIMENTS, NO_EVENT_ENGINE)
    if TRACE not in environ:  # traces come at a level of their own, below errors
        environ.setdefault(VERBOSITY, "ERROR")  # else every Ctrl-C prints an I line


set_grpc_environment(os.environ)
