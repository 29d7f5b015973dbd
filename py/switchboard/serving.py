"""Running the gateway in this process: its port, its signals, its end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn

from switchboard import logs
from switchboard.config import Settings
from switchboard.errors import Problem
from switchboard.gateway import uvicorn_config

BACKLOG = 2048


def bind(settings: Settings) -> socket.socket:
    """Take the port before anything else is started.

    Raises:
        Problem: it is taken, or cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    taken = socket.socket(family, socket.SOCK_STREAM)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        taken.bind((settings.host, settings.port))
        # Listening here and now: on Linux two sockets that only bound could share the port.
        taken.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        taken.close()
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            raise Problem(
                "conflict",
                f"Port {settings.port} is taken by another program. Choose another: "
                f"SWITCHBOARD_PORT={settings.port + 1} make up",
            ) from None
        raise Problem(
            "invalid_argument",
            f"Cannot listen on {settings.host}, port {settings.port} ({error}): set "
            "SWITCHBOARD_HOST and SWITCHBOARD_PORT to an address of this machine.",
        ) from None
    return taken


def serve(settings: Settings, taken: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        settings: with the database_url.
        taken: from ``bind``.
        ready: called once requests are answered.

    Raises:
        Problem: the server did not come up; its log says why.
    """
    logs.configure(settings)
    server = _Server(uvicorn_config(settings), ready)
    # What has been imported stays: to search it for garbage would hold up every call for 0.15 s.
    gc.collect()
    gc.freeze()
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(server.serve(sockets=[taken]))
    if not server.came_up:
        raise Problem("unavailable", "The server did not come up; its last log lines say why.")


class _Server(uvicorn.Server):
    """uvicorn that says when it is ready, and returns after a signal instead of re-raising it."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.came_up = False
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.came_up = True
            self._ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
