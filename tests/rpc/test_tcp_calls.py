"""Calls past gRPC, over a direct TCP socket: threads move them as over a Unix socket."""

from __future__ import annotations

from tests.conftest import Programs
from tests.rpc import test_local_calls as local

HEAD = local.HEAD.replace("init_rpc()", "init_rpc(options=rpc.RpcOptions(direct='tcp'))").replace(
    """    assert carrier().startswith("local"), carrier()
""",
    """    while not carrier().startswith("tcp"):
        rpc.rpc_sync(1, nothing)
""",
)


def test_over_a_direct_tcp_socket(programs: Programs) -> None:
    local.run(programs, HEAD, local.BODIES)
