"""A proxy between a client and an HTTP server that delays, refuses, cuts short and resets on demand.

In a test: ``with Proxy(port).running() as proxy: proxy.add(Fault("status", status=503, times=3))``. For a
benchmark: ``python -m tests.proxy UPSTREAM_PORT LATENCY_S`` prints its own port and serves until killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import re
import socket
import struct
import sys
import threading
from collections import Counter

_PIECE = 2**18


@dataclasses.dataclass
class Fault:
    """What to do to a request instead of passing it on.

    `kind`: ``status`` answers with `status`; ``refuse`` closes the connection unanswered; ``truncate`` sends
    half of the body under the full Content-Length and closes; ``reset`` does so with a TCP reset; ``shorten``
    sends half of the body under a Content-Length that agrees with it.
    """

    kind: str
    method: str = "GET"
    match: str = ""
    times: float = 1
    status: int = 503


class Proxy:
    """Forwards to `upstream`, a port of this machine. `seen` counts requests and ``faults`` those done."""

    def __init__(self, upstream: int, latency_s: float = 0.0) -> None:
        self.upstream = upstream
        self.latency_s = latency_s
        self.faults: list[Fault] = []
        self.seen: Counter[str] = Counter()
        self.requests: list[str] = []
        self.port = 0

    def add(self, *faults: Fault) -> None:
        """Do these to the next requests that they match."""
        self.faults += faults

    def heal(self) -> None:
        """Pass on everything from now on, at once."""
        self.faults.clear()
        self.latency_s = 0.0
        self.seen.clear()
        self.requests.clear()

    @contextlib.contextmanager
    def running(self):
        """Serve for the length of the block."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        server = asyncio.run_coroutine_threadsafe(self.start(), loop).result()
        try:
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(self._stop(server), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    async def start(self):
        """Listen on a free port."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**20)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _stop(self, server) -> None:
        server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader, writer) -> None:
        upstream = None
        try:
            upstream = await asyncio.open_connection("127.0.0.1", self.upstream, limit=2**20)
            while await self._pass_on(reader, writer, *upstream):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            if upstream:
                upstream[1].close()

    async def _pass_on(self, reader, writer, up_reader, up_writer) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        method, target = head.split(b" ", 2)[:2]
        fault = self._take(method.decode(), target.decode(errors="replace"))
        if re.search(rb"(?i)\r\nexpect: *100-continue", head):
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            head = re.sub(rb"(?i)\r\nexpect: *100-continue", b"", head)
        body = [piece async for piece in _body(reader, head)]
        if fault and fault.kind == "refuse":
            return False
        if fault and fault.kind == "status":
            await _answer(writer, fault.status, method)
            return True
        if method == b"GET" and self.latency_s:
            await asyncio.sleep(self.latency_s)
        up_writer.writelines([head, *body])
        await up_writer.drain()
        return await self._return(method, fault, writer, up_reader)

    async def _return(self, method, fault, writer, up_reader) -> bool:
        head = await up_reader.readuntil(b"\r\n\r\n")
        while head.startswith(b"HTTP/1.1 1"):
            head = await up_reader.readuntil(b"\r\n\r\n")
        has_body = method != b"HEAD" and not re.match(rb"HTTP/1.1 (204|304)", head)
        length = int(_header(head, b"content-length") or b"0") if has_body else 0
        stop = length // 2 if fault else length
        if fault and fault.kind == "shorten":
            head = re.sub(rb"(?i)(content-length: *)\d+", rb"\g<1>%d" % stop, head)
        writer.write(head)
        if not has_body:
            return True
        sent = 0
        async for piece in _body(up_reader, head if not fault else b"\r\ncontent-length: %d\r\n" % stop):
            writer.write(piece)
            await writer.drain()
            sent += len(piece)
        if fault and fault.kind == "reset":
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        return not fault

    def _take(self, method: str, target: str) -> Fault | None:
        self.seen[method] += 1
        self.requests.append(f"{method} {target}")
        for fault in list(self.faults):
            if fault.method in (method, "*") and re.search(fault.match, target) and fault.times > 0:
                fault.times -= 1
                self.seen["faults"] += 1
                return fault
        return None


def _header(head: bytes, name: bytes) -> bytes | None:
    found = re.search(rb"(?i)\r\n" + name + rb": *([^\r]*)", head)
    return found and found[1]


async def _body(reader, head: bytes):
    """Yield the body that belongs to a head, as it stands on the wire."""
    if b"chunked" in (_header(head, b"transfer-encoding") or b"").lower():
        while True:
            line = await reader.readline()
            yield line
            size = int(line.split(b";")[0], 16)
            yield await reader.readexactly(size + 2)
            if not size:
                return
    left = int(_header(head, b"content-length") or 0)
    while left:
        piece = await reader.read(min(left, _PIECE))
        if not piece:
            raise asyncio.IncompleteReadError(b"", left)
        left -= len(piece)
        yield piece


async def _answer(writer, status: int, method: bytes) -> None:
    code = {503: "SlowDown", 500: "InternalError", 429: "TooManyRequests", 403: "ExpiredToken"}.get(
        status, "Error"
    )
    text = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>as asked</Message></Error>'.encode()
    text = b"" if method == b"HEAD" else text
    writer.write(
        b"HTTP/1.1 %d X\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n" % (status, len(text))
    )
    writer.write(text)
    await writer.drain()


async def _main() -> None:
    proxy = Proxy(int(sys.argv[1]), float(sys.argv[2]))
    server = await proxy.start()
    sys.stdout.write(f"{proxy.port}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main())
