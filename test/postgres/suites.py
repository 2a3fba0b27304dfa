"""PostgreSQL's suites, run by its own programs on a private server."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pgmip.testing import Cluster, find_bindir
from psycopg.conninfo import conninfo_to_dict

# a line of pg_regress about a test: before and after PostgreSQL 16
VERDICT = re.compile(
    r"^(?:(?P<word>ok|not ok) +\d+ +[-+] +(?P<name>\S+)"
    r"|(?:test|    ) +(?P<name15>\S+) +\.\.\. (?P<word15>ok|FAILED))"
)
# left to those whose server allows prepared transactions
UNSCHEDULED = ["prepared-transactions", "prepared-transactions-cic"]
CRASH = re.compile(r"TRAP:|PANIC:|was terminated by signal")


@dataclass(frozen=True)
class Outputs:
    """What the tests of a suite have printed, and which of them pg_regress is content with."""

    folder: Path
    passed: Mapping[str, bool]
    crash: str  # what the server's log says of one
    instances: frozenset[str]  # the tests that had any


def major() -> int:
    version = subprocess.run([find_bindir() / "pg_config", "--version"], check=True, capture_output=True, text=True)
    return int(re.findall(r"\d+", version.stdout)[0])


def schedule_of(build: Path, kind: str) -> Path:
    return build / "src/test" / kind / ("parallel_schedule" if kind == "regress" else "isolation_schedule")


def scheduled(build: Path, kind: str) -> list[str]:
    """The tests of a suite."""
    lines = schedule_of(build, kind).read_text().splitlines()
    tests = [test for line in lines if line.startswith("test:") for test in line[5:].split()]
    return tests + (UNSCHEDULED if kind == "isolation" else [])


def run_suite(
    build: Path,
    kind: str,
    folder: Path,
    access_method: str,
    tests: list[str] | None = None,
    preload: Path | None = None,
    siblings: bool = False,
) -> Outputs:
    """Run suite `kind` on tables of `access_method`, of the isolation suite perhaps only `tests`.

    `preload` is a library for the program that runs a spec, with `siblings` in its families or without.
    """
    source = build / "src/test" / kind
    folder.mkdir()
    schedule = schedule_of(build, kind)
    if kind == "isolation":
        schedule = folder / "schedule"
        schedule.write_text("".join(f"test: {test}\n" for test in tests or scheduled(build, kind)))
    with Cluster(folder.name, settings={"default_table_access_method": access_method}) as cluster:
        cluster.run_sql("CREATE EXTENSION pg_mip", dbname="template1")
        command: list[str | Path] = [
            source / ("pg_regress" if kind == "regress" else "pg_isolation_regress"),
            f"--bindir={find_bindir()}",
            f"--inputdir={source}",
            f"--outputdir={folder}",
            f"--dlpath={source}",
            f"--schedule={schedule}",
            "--max-concurrent-tests=20",
            "--load-extension=pg_mip",
            f"--dbname={kind}",
            *connection_of(cluster),
        ]
        if preload:
            command.append(f"--launcher=env {'SIBLINGS=1 ' if siblings else ''}LD_PRELOAD={preload}")
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment())
        (folder / "log").write_text(done.stdout + done.stderr)
        log = cluster.log_path.read_text(errors="replace").splitlines()
        xids = cluster.run_sql("SELECT DISTINCT split_part(xid, ' ', 1) FROM mip.mipt", dbname=kind)
    return Outputs(
        folder=folder / "results",
        passed=verdicts(done.stdout),
        crash="\n".join(line for line in log if CRASH.search(line)),
        instances=frozenset(xid.removeprefix("isolation/").split("/")[0] for (xid,) in xids),
    )


def connection_of(cluster: Cluster) -> list[str]:
    words = conninfo_to_dict(cluster.conninfo())
    return [f"--{word}={words[word]}" for word in ("host", "port", "user")]


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_"))} | {"LC_ALL": "C"}


def verdicts(report: str) -> dict[str, bool]:
    found = {}
    for line in report.splitlines():
        if match := VERDICT.match(line):
            found[match["name"] or match["name15"]] = (match["word"] or match["word15"]) == "ok"
    return found
