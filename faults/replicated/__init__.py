"""Faults at a replicated site, `./run faults --replicated`: see ../README.md."""

from . import plan, report, run

__all__ = ["plan", "report", "run"]
