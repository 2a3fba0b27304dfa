"""What pgbench has measured, and what was wanted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pgmip.testing import Cluster

from ..rounds import pgbench, rate
from ..rows import markdown

__all__ = ["LEVELS", "SI", "SSI", "Measured", "Target", "run", "tell_targets"]

SI, SSI = LEVELS = ("REPEATABLE READ", "SERIALIZABLE")  # the paper's names are these


@dataclass(frozen=True)
class Measured:
    """Of transactions that fail to be serialized, or by a deadlock, every attempt but the last one has `failed`."""

    tps: float
    done: int
    failed: int

    @classmethod
    def read(cls, output: str) -> Measured:
        """What pgbench printed; it was told to try again."""
        counts = {
            name: int(value)
            for name, value in re.findall(r"^(?:total )?(number of [\w ]+): (\d+)", output, re.MULTILINE)
        }
        failed = counts["number of retries"] + counts["number of failed transactions"]
        return cls(rate(output), counts["number of transactions actually processed"], failed)

    @property
    def failures(self) -> float:
        """Of all attempts, the share that failed."""
        return self.failed / max(1, self.failed + self.done)


def run(
    cluster: Cluster, database: str, scripts: Iterable[tuple[str, float]], *, clients: int, seconds: float
) -> Measured:
    """These scripts by their weights; what fails is tried again until it succeeds."""
    files = []
    for number, (text, weight) in enumerate(scripts):
        file: Path = cluster.directory / f"script{number}.sql"
        file.write_text(text)
        files.append(f"-f{file}@{round(10_000 * weight)}")
    return Measured.read(pgbench(
        cluster, database, "-n", "-M", "prepared", "-c", str(clients), "-j", str(min(2, clients)),
        "-T", f"{seconds:g}", "--max-tries=0", *files,
    ))  # fmt: skip


@dataclass(frozen=True)
class Target:
    """`value` should be at least `least`, or at most `most`."""

    what: str
    value: float
    least: float | None = None
    most: float | None = None

    @property
    def met(self) -> bool:
        return (self.least is None or self.value >= self.least) and (self.most is None or self.value <= self.most)

    @property
    def wanted(self) -> str:
        return f"at least {self.least:g}" if self.least is not None else f"at most {self.most:g}"


def tell_targets(targets: Sequence[Target]) -> str:
    lines = [[one.what, one.wanted, f"{one.value:.3g}", "yes" if one.met else "**no**"] for one in targets]
    return markdown(["target", "wanted", "here", "met"], lines)
