"""The gRPC transport over Unix sockets: for workers of one host and one user, with no TCP port."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import final

from telegrad.transport.base import Carrier, Listener, Transport
from telegrad.transport.grpc_dialer import Dialler
from telegrad.transport.grpc_listener import listen_unix
from telegrad.transport.grpc_options import SCHEME, TLS_SCHEME
from telegrad.transport.unix_socket import UNIX_SCHEME, make_path, parent_of, remove_beside

__all__ = ["UnixTransport"]


@final
class UnixTransport(Transport):
    """Listens on a Unix socket; dials whatever the gRPC transport does.

    Args:
        bind: `unix`, or `unix:///directory` for where its own directory is made.
        dialler: What dials.
        options: gRPC's, of the listener.

    Raises:
        ValueError: `bind` is neither, or its path is too long.
    """

    def __init__(self, bind: str, dialler: Dialler, options: tuple[tuple[str, int], ...]) -> None:
        self._parent = parent_of(bind)
        self._dialler = dialler
        self._options = options

    @property
    def scheme(self) -> str:
        """Endpoints are `unix:///path`."""
        return UNIX_SCHEME

    @property
    def schemes(self) -> frozenset[str]:
        """Those of the gRPC transport, too."""
        return frozenset({UNIX_SCHEME, SCHEME, TLS_SCHEME})

    async def listen(self, accept: Callable[[Carrier], Awaitable[None]]) -> Listener:
        """Makes a directory and listens on a socket in it.

        Raises:
            OSError: The directory cannot be made.
        """
        loop = asyncio.get_running_loop()
        path = await loop.run_in_executor(None, make_path, self._parent)
        try:
            return _UnixListener(await listen_unix(path, accept, options=self._options), path)
        except BaseException:
            await remove_beside(path)
            raise

    async def dial(self, endpoint: str) -> Carrier:
        """Opens a stream; see `Transport.dial`."""
        return await self._dialler.dial(endpoint)


@final
class _UnixListener(Listener):
    def __init__(self, inner: Listener, path: str) -> None:
        self._inner = inner
        self._path = path

    @property
    def endpoint(self) -> str:
        return self._inner.endpoint

    async def close(self) -> None:
        await self._inner.close()
        await remove_beside(self._path)
