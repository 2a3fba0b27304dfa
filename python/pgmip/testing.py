"""Private PostgreSQL clusters for tests and demos::

    from pgmip.testing import Cluster

    with Cluster("store", settings={"log_min_messages": "log"}) as store:
        store.create_database("shop")
        store.run_sql("CREATE EXTENSION pg_mip", dbname="shop")
        store.conninfo("shop")             # Unix socket
        store.conninfo("shop", tcp=True)   # 127.0.0.1, a free port; what a proxy needs
        store.kill_postmaster()            # as if the machine had lost its power
        store.start()                      # crash recovery

Everything lives in one temporary folder that only the current user can enter. It is removed by `remove()`, at the
end of the `with` block, at interpreter exit and on SIGTERM. Only SIGKILL of this very process leaves it behind.

PostgreSQL refuses to run as root, so `Cluster` does too.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Literal, Self, cast

import psycopg
from psycopg.conninfo import make_conninfo

__all__ = ["Cluster", "ClusterError", "extension_installed", "find_bindir"]

SUPERUSER = "postgres"
_MAX_SOCKET_DIR = 90  # a socket's path is limited to 107 bytes, "/.s.PGSQL.65535" takes 15 of them

Setting = str | int | float | bool


class ClusterError(Exception):
    """A private cluster could not be created, started or stopped. The message ends with the server's log."""


def find_bindir() -> Path:
    """The folder of the server's programs: of $PG_CONFIG, else of pg_config on PATH, else the newest of Debian's.

    Raises ClusterError where none of them has initdb and postgres.
    """
    tried: list[str] = []
    for pg_config in (os.environ.get("PG_CONFIG"), shutil.which("pg_config")):
        if pg_config:
            with contextlib.suppress(OSError, subprocess.CalledProcessError):
                output = subprocess.run([pg_config, "--bindir"], check=True, capture_output=True, text=True)
                tried.append(output.stdout.strip())
    debian = Path("/usr/lib/postgresql").glob("*/bin")
    tried += map(str, sorted(debian, key=lambda path: _leading_number(path.parent.name), reverse=True))
    for bindir in map(Path, tried):
        if (bindir / "initdb").exists() and (bindir / "postgres").exists():
            return bindir
    raise ClusterError(
        f"no PostgreSQL server found (looked at: {', '.join(tried) or 'nothing'}); "
        "install it, or set PG_CONFIG to the pg_config of the one to use"
    )


def extension_installed() -> bool:
    """Whether the server that `find_bindir` finds has the extension pg_mip installed."""
    try:
        pg_config = find_bindir() / "pg_config"
        output = subprocess.run([pg_config, "--sharedir"], check=True, capture_output=True, text=True)
    except (ClusterError, OSError, subprocess.CalledProcessError):
        return False
    return (Path(output.stdout.strip()) / "extension" / "pg_mip.control").exists()


class Cluster:
    """One private PostgreSQL cluster; see the module's docstring. Use from one thread at a time.

    The folder is made by the first `start()`, which entering the `with` block calls.
    """

    def __init__(
        self,
        name: str = "site",
        *,
        settings: Mapping[str, Setting] | None = None,
        fsync: bool = False,
        max_prepared_transactions: int = 64,
        max_connections: int = 100,
        preload: Sequence[str] = ("pg_mip",),
        bindir: Path | None = None,
        standby_of: Cluster | None = None,
        copy_of: Cluster | None = None,
    ) -> None:
        """`settings` go into postgresql.conf last, so they win over everything this class sets by itself.

        `fsync=False` is safe against kill_postmaster(), not against a crash of the operating system.

        `standby_of`: a running cluster that this one follows; the first `start()` copies it. It names itself to its
        primary by `name`, for synchronous_standby_names.

        `copy_of`: a running cluster that the first `start()` copies (pg_basebackup), and that this one goes its own way
        from.
        """
        if os.geteuid() == 0:
            raise ClusterError(
                "PostgreSQL refuses to run as root: run this as an ordinary user, "
                "for example with `runuser -u postgres -- COMMAND`"
            )
        self.name = name
        self.bindir = bindir or find_bindir()
        self._settings: dict[str, Setting] = {
            "fsync": fsync,
            "max_prepared_transactions": max_prepared_transactions,
            "max_connections": max_connections,
            "shared_preload_libraries": ",".join(preload),
            "shared_buffers": "32MB",
            "logging_collector": False,
            "log_line_prefix": "%m [%p] %q%d ",
            "lc_messages": "C",
            **(settings or {}),
        }
        self._root: Path | None = None
        self._socket_directory: Path | None = None
        self._port = 0
        self._primary, self._original = standby_of, standby_of or copy_of
        self._password: str = self._original._password if self._original else secrets.token_urlsafe(18)
        self._process: subprocess.Popen[bytes] | None = None

    # Where it is -----------------------------------------------------------------------------------------------

    @property
    def directory(self) -> Path:
        """The temporary folder of everything. Raises ClusterError before the first start and after remove."""
        if self._root is None:
            raise ClusterError(f"cluster {self.name!r} has not been started")
        return self._root

    @property
    def data_directory(self) -> Path:
        return self.directory / "data"

    @property
    def log_path(self) -> Path:
        return self.directory / "log"

    @property
    def port(self) -> int:
        return self._port

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pids(self) -> tuple[int, ...]:
        """The postmaster, and then the processes it has started; empty while it is not running."""
        if self._process is None or not self.running:
            return ()
        return (self._process.pid, *_children(self._process.pid))

    def conninfo(self, dbname: str = "postgres", *, tcp: bool = False, **parameters: Any) -> str:
        """A connection string of the superuser. `parameters` are libpq's own, and override the others."""
        address: dict[str, Any] = {"host": str(self._socket_directory)}
        if tcp:
            address = {"host": "127.0.0.1", "password": self._password}
        known = {**address, "port": self._port, "user": SUPERUSER, "dbname": dbname}
        return make_conninfo(**{**known, **parameters})

    # What it does ----------------------------------------------------------------------------------------------

    def start(self, *, timeout: float = 60) -> Self:
        """Start the server (the first time: create it) and wait until it answers. No-op while it runs."""
        if self.running:
            return self
        if self._root is None:
            self._create()
        for last in (False, False, True):
            self._launch()
            if self._wait_until_ready(timeout):
                return self
            # Somebody else may have taken the port since it was found free.
            if last or "could not bind" not in self.log_tail():
                break
            self._port = _free_port()
            self._configure()
        log = self.log_tail()
        self.stop("immediate")
        raise ClusterError(f"cluster {self.name!r} did not start:\n{log}")

    def stop(self, mode: Literal["smart", "fast", "immediate"] = "fast", *, timeout: float = 60) -> None:
        """Stop the server, as `pg_ctl stop -m MODE`; the data stays. No-op while it is not running."""
        if self._process is None:
            return
        signals = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
        if self.running:
            self._process.send_signal(signals[mode])
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill_postmaster()
        self._process = None

    def restart(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        self.stop(mode)
        self.start()

    def kill_postmaster(self, *, alone: bool = False) -> None:
        """SIGKILL the postmaster and what it started, and wait until all are gone: nothing gets to clean up.

        `alone`: what it started notices by itself that its postmaster is gone, and ends; whatever does not within two
        seconds (it has no reason to look) is killed as well.
        """
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGSTOP)  # starts nothing new
        family = [self._process.pid, *_children(self._process.pid)]
        _kill(family[:1] if alone else family)
        self._process.wait()
        self._process = None
        patience = time.monotonic() + 2
        while any(map(_alive, family)):
            if alone and time.monotonic() > patience:
                _kill(family)
            time.sleep(0.01)

    def promote(self, *, timeout: float = 60) -> None:
        """Make a standby a primary, and wait until it is. Raises ClusterError."""
        promoted = self.run_sql(f"SELECT pg_promote(wait_seconds => {max(1, round(timeout))})")
        if promoted != [(True,)]:
            raise ClusterError(f"cluster {self.name!r} was not promoted:\n{self.log_tail()}")

    def configure(self, settings: Mapping[str, Setting]) -> None:
        """Change settings for good, and reload those that need no restart."""
        self._settings.update(settings)
        if self._root is not None:
            self._configure()
        if self._process is not None and self.running:
            self._process.send_signal(signal.SIGHUP)

    def run_sql(self, sql: str, *, dbname: str = "postgres") -> list[tuple[Any, ...]]:
        """Run one or more statements, each for itself, and return the rows of the last one that has rows."""
        rows: list[tuple[Any, ...]] = []
        with psycopg.connect(self.conninfo(dbname), autocommit=True) as conn:
            cursor = conn.execute(sql.encode())
            while True:
                if cursor.description is not None:
                    rows = cursor.fetchall()
                if not cursor.nextset():
                    return rows

    def create_database(self, name: str) -> None:
        self.run_sql(f'CREATE DATABASE "{name}"')

    def log_tail(self, lines: int = 40) -> str:
        """The last lines of the server's log."""
        if self._root is None or not self.log_path.exists():
            return ""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def remove(self) -> None:
        """Stop at once and delete everything. May be called in any state, and again."""
        self.stop("immediate", timeout=10)
        for folder in {self._root, self._socket_directory} - {None}:
            shutil.rmtree(cast(Path, folder), ignore_errors=True)
        self._root = self._socket_directory = None
        _clusters.discard(self)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    # How -------------------------------------------------------------------------------------------------------

    def _create(self) -> None:
        _clean_up_at_exit(self)
        self._root = Path(tempfile.mkdtemp(prefix=f"pgmip-{self.name}-"))
        self._socket_directory = self._root
        if len(str(self._root).encode()) > _MAX_SOCKET_DIR:
            self._socket_directory = Path(tempfile.mkdtemp(prefix="pgmip-", dir="/tmp"))
        if self._original is None:
            self._initialise()
        else:
            self._copy(self._original)
        if self._primary is not None:
            self._follow(self._primary)
        self._port = _free_port()
        self._configure()

    def _initialise(self) -> None:
        pwfile = self.directory / "password"
        pwfile.touch(mode=0o600)
        pwfile.write_text(self._password)
        self._make(
            "initdb",
            "--pgdata", self.data_directory,
            "--username", SUPERUSER,
            "--pwfile", pwfile,
            "--auth-local=trust",  # the folder of the socket is ours alone
            "--auth-host=scram-sha-256",
            "--encoding=UTF8",
            "--no-locale",
            "--no-sync",
        )  # fmt: skip
        pwfile.unlink()

    def _copy(self, original: Cluster) -> None:
        self._make(
            "pg_basebackup",
            "--pgdata", self.data_directory,
            "--dbname", original.conninfo(),
            "--checkpoint=fast",
            "--wal-method=stream",
            "--no-sync",
        )  # fmt: skip

    def _follow(self, primary: Cluster) -> None:
        (self.data_directory / "standby.signal").touch()
        self._settings["primary_conninfo"] = primary.conninfo("replication", application_name=self.name)

    def _make(self, program: str, *arguments: str | Path) -> None:
        made = subprocess.run(
            [self.bindir / program, *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        if made.returncode != 0:
            self.remove()
            raise ClusterError(f"{program} failed:\n{made.stdout}")

    def _configure(self) -> None:
        settings: dict[str, Setting] = {
            "port": self._port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self._socket_directory),
            **self._settings,
        }
        lines = [f"{name} = {_quoted(value)}\n" for name, value in settings.items()]
        (self.data_directory / "postgresql.auto.conf").write_text("".join(lines))

    def _launch(self) -> None:
        # The postmaster's own group: a Ctrl-C meant for us must not stop it behind our back.
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [self.bindir / "postgres", "-D", self.data_directory],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
            )

    def _wait_until_ready(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while self.running and time.monotonic() < deadline:
            try:
                psycopg.connect(self.conninfo(connect_timeout=2)).close()
                return True
            except psycopg.OperationalError:
                time.sleep(0.05)
        return False


# Clean-up ------------------------------------------------------------------------------------------------------

_clusters: set[Cluster] = set()
_owner_pid = 0


def _clean_up_at_exit(cluster: Cluster) -> None:
    global _owner_pid
    if _owner_pid != os.getpid():
        # First cluster of this process. A forked child inherits the set, but must not remove its parent's.
        _owner_pid = os.getpid()
        _clusters.clear()
        atexit.register(_remove_all)
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _exit_on_signal)
    _clusters.add(cluster)


def _exit_on_signal(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)  # runs the `with` blocks and atexit


def _remove_all() -> None:
    if _owner_pid == os.getpid():
        for cluster in list(_clusters):
            cluster.remove()


# Small things --------------------------------------------------------------------------------------------------


def _quoted(value: Setting) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "'" + str(value).replace("\\", "\\\\").replace("'", "''") + "'"


def _leading_number(text: str) -> int:
    match = re.match(r"\d+", text)
    return int(match[0]) if match else -1


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _children(pid: int) -> Iterable[int]:
    with contextlib.suppress(OSError):
        return map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return ()


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
