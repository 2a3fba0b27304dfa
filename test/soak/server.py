"""A private server that may be killed at any time."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg

SETTINGS = """
listen_addresses = ''
unix_socket_directories = '{sockets}'
shared_preload_libraries = 'pg_mip'
max_prepared_transactions = 200
max_connections = 60
shared_buffers = 16MB
fsync = off
autovacuum_naptime = 1s
vacuum_freeze_min_age = 1000
vacuum_multixact_freeze_min_age = 100
max_wal_size = 256MB
checkpoint_timeout = 30s
log_line_prefix = '%m [%p] %e '
log_min_messages = warning
log_lock_waits = on
deadlock_timeout = 200ms
lock_timeout = 3s
"""


class Server:
    def __init__(self) -> None:
        self.work = Path(tempfile.mkdtemp(prefix="pg_mip_soak."))
        self.data = self.work / "data"
        self.log = self.work / "log"

    def create(self, settings: str = "") -> None:
        self._call("initdb", "-D", self.data, "-A", "trust", "-U", "soak", "--no-sync", "--locale=C", "-E", "UTF8")
        with open(self.data / "postgresql.conf", "a") as conf:
            conf.write(SETTINGS.format(sockets=self.work) + settings)
        self.start()

    def _call(self, *command: str | Path) -> None:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            tail = self.log.read_text()[-2000:] if self.log.exists() else ""
            raise RuntimeError(f"{command[0]} failed: {done.stdout}{done.stderr}{tail}")

    def start(self) -> None:
        self._call("pg_ctl", "-D", self.data, "-l", self.log, "-w", "-t", "120", "start")

    def stop(self) -> None:
        if (self.data / "postmaster.pid").exists():
            self._call("pg_ctl", "-D", self.data, "-m", "fast", "-t", "120", "stop")

    def connect(self, dbname: str = "postgres") -> psycopg.Connection:
        return psycopg.connect(host=str(self.work), user="soak", dbname=dbname, autocommit=True, connect_timeout=10)

    def crash(self) -> None:
        """kill -9 for the postmaster and everything it has started."""
        postmaster = int((self.data / "postmaster.pid").read_text().split()[0])
        os.kill(postmaster, signal.SIGSTOP)  # starts nothing new
        everything = [postmaster, *children(postmaster)]
        for pid in everything:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while any(alive(pid) for pid in everything):
            time.sleep(0.01)
        # their names may stay with zombies, which a server takes for a server
        (self.data / "postmaster.pid").unlink()
        for lock in self.work.glob(".s.PGSQL.*.lock"):
            lock.unlink()

    def remove(self) -> None:
        shutil.rmtree(self.work)


def _stat(pid: int) -> list[str]:
    """State, parent, ... of a process; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def alive(pid: int) -> bool:
    stat = _stat(pid)
    return bool(stat) and stat[0] not in ("Z", "X")


def children(parent: int) -> list[int]:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if _stat(pid)[1:2] == [str(parent)]]
