"""What a bench was wanted to say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .rows import markdown

__all__ = ["Target", "tell_targets"]


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
