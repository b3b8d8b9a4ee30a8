"""Somebody between a dialler and a listener."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from pathlib import Path

from telegrad.transport.grpc.options import split_address
from telegrad.transport.security.tls import trusting_context


class Between:
    """Stands between a dialler and a listener; has a loop and a thread of its own.

    Args:
        endpoint: Of the listener.
        shown: The certificate that it shows the dialler: it ends the TLS connection of that, begins
            another to the listener, and reads what passes. None: it passes all on as it is.
        delay: Seconds for which it holds back what passes.
    """

    def __init__(
        self, endpoint: str, shown: tuple[Path, Path] | None = None, *, delay: float = 0.0
    ) -> None:
        self._server = self.client = None
        if shown is not None:
            self._server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._server.load_cert_chain(*shown)
            self._server.set_alpn_protocols(["h2"])
            self.client = trusting_context()
        self._delay = delay
        self._host, self._port = split_address(endpoint)
        self.passed = [0, 0]  # bytes from the dialler, and to it
        self._listening = socket.create_server(("127.0.0.1", 0))
        port = self._listening.getsockname()[1]
        self.endpoint = f"{endpoint.partition('://')[0]}://127.0.0.1:{port}"
        self._loop = asyncio.new_event_loop()
        self._done = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))
        self._thread.start()

    async def _serve(self) -> None:
        passing: set[asyncio.Task[None]] = set()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            passing.add(task)
            task.add_done_callback(passing.discard)
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._pass(reader, writer)
            writer.transport.abort()

        server = await asyncio.start_server(accept, sock=self._listening, ssl=self._server)
        await self._done.wait()
        server.close()
        calm = 0  # turns; transports are closed after their abort, and some are accepted yet
        while calm < 5:
            calm += 1
            await asyncio.sleep(0)
            if passing:
                for task in passing:
                    task.cancel()
                await asyncio.wait(passing)
                calm = 0

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ahead, back = await self._connected()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, back, 0))
                group.create_task(self._pump(ahead, writer, 1))
        except* OSError:
            pass
        finally:
            back.transport.abort()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        name = None if self.client is None else ""
        connecting = asyncio.ensure_future(
            asyncio.open_connection(self._host, self._port, ssl=self.client, server_hostname=name)
        )
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:  # one that is cancelled in its handshake is left open
            with contextlib.suppress(OSError):
                (await connecting)[1].transport.abort()
            raise

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, way: int
    ) -> None:
        while data := await source.read(65536):
            self.passed[way] += len(data)
            if self._delay:
                self._loop.call_later(self._delay, sink.write, data)
            else:
                sink.write(data)
                await sink.drain()
        raise ConnectionResetError("one end has closed, so that the other one is, too")

    def __enter__(self) -> Between:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join()
        self._loop.close()
