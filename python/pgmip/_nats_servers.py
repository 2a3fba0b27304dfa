"""Three NATS servers of one cluster, which flush always: where a log in JetStream is. For tests and demos."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

__all__ = ["NatsServer", "NatsServers", "find_nats_server"]

_PATIENCE = 60.0  # seconds
_CONFIG = """
server_name: {name}
listen: "127.0.0.1:{client}"
http: "127.0.0.1:{monitor}"
max_payload: 8MB
jetstream {{ store_dir: "{folder}/{name}", {sync} }}
cluster {{ name: log, listen: "127.0.0.1:{route}", routes: [{routes}] }}
"""


def find_nats_server() -> str | None:
    """The program: $NATS_SERVER, or that on PATH."""
    return os.environ.get("NATS_SERVER") or shutil.which("nats-server")


class NatsServer:
    """One of them."""

    def __init__(self, folder: Path, name: str, client: int, monitor: int, route: int) -> None:
        self.name = name
        self.client, self.monitor, self.route = client, monitor, route
        self.store = folder / name
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, routes: str, *, flush: bool = True) -> None:
        config = self._folder / f"{self.name}.conf"
        config.write_text(
            _CONFIG.format(
                name=self.name, client=self.client, monitor=self.monitor, route=self.route, routes=routes,
                folder=self._folder, sync="sync_interval: always" if flush else "",
            )
        )  # fmt: skip
        program = find_nats_server()
        assert program is not None, "there is no nats-server: see ./run test jetstream"
        with (self._folder / f"{self.name}.log").open("ab") as output:
            self._process = subprocess.Popen(
                [program, "-c", str(config)], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def kill(self) -> None:
        """With SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """It says nothing, and loses nothing, until it may go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def ask(self, what: str) -> dict[str, Any]:
        """What its monitoring says. Raises OSError."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{self.monitor}/{what}", timeout=2) as answer:
            told: dict[str, Any] = json.load(answer)
        return told


class NatsServers:
    """All three, in a temporary folder; started and removed as a context manager."""

    def __init__(self, *, flush: bool = True) -> None:
        self._flush = flush
        self.folder = Path(tempfile.mkdtemp(prefix="pgmip-nats-"))
        with ExitStack() as stack:
            ports = [_free_port(stack) for _ in range(9)]
        self.servers = [
            NatsServer(self.folder, f"n{number + 1}", *ports[3 * number : 3 * number + 3]) for number in range(3)
        ]

    def address(self, stream: str) -> str:
        """For --log."""
        places = ",".join(f"127.0.0.1:{server.client}" for server in self.servers)
        monitors = ",".join(str(server.monitor) for server in self.servers)
        return f"nats://{places}/{stream}?monitor={monitors}"

    def start(self) -> None:
        """All that do not run, and wait until they are a cluster."""
        for server in self.servers:
            if not server.is_running:
                self.start_one(server)
        self.wait()

    def start_one(self, server: NatsServer, *, flush: bool | None = None) -> None:
        routes = ", ".join(f'"nats://127.0.0.1:{each.route}"' for each in self.servers)
        server.start(routes, flush=self._flush if flush is None else flush)

    def wait(self) -> None:
        """Until all that run follow a leader, and all streams have one that all others follow."""
        end = time.monotonic() + _PATIENCE
        while not all(_is_well(server) for server in self.servers if server.is_running):
            assert time.monotonic() < end, f"NATS does not start: see {self.folder}"
            time.sleep(0.1)

    def leader(self, stream: str) -> NatsServer | None:
        """Of a stream."""
        for detail in self._details(stream):
            name = detail.get("cluster", {}).get("leader")
            for server in self.servers:
                if server.name == name and server.is_running:
                    return server
        return None

    def end(self, stream: str) -> int:
        """The sequence number of the last message that any of them has."""
        return max(int(detail["state"]["last_seq"]) for detail in self._details(stream))

    def counts(self, stream: str) -> set[int]:
        """How many messages any of them has."""
        return {int(detail["state"]["messages"]) for detail in self._details(stream)}

    def _details(self, stream: str) -> Iterator[dict[str, Any]]:
        """What each says of it, if it says anything."""
        for server in self.servers:
            if not server.is_running:
                continue
            with suppress(OSError):
                for account in server.ask("jsz?streams=true").get("account_details", ()):
                    yield from (each for each in account.get("stream_detail", ()) if each["name"] == stream)

    def remove(self) -> None:
        for server in self.servers:
            server.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def _is_well(server: NatsServer) -> bool:
    try:
        told, cluster = server.ask("healthz"), server.ask("jsz").get("meta_cluster", {})
    except OSError:
        return False
    return told.get("status") == "ok" and bool(cluster.get("leader"))


def _free_port(stack: ExitStack) -> int:
    """Held until the stack ends, so that no two are the same."""
    probe = stack.enter_context(socket.socket())
    probe.bind(("127.0.0.1", 0))
    return int(probe.getsockname()[1])
