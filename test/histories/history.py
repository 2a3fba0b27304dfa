"""A history as it is kept: its seed, and the steps that were played."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass
class History:
    seed: str
    blocking: bool
    steps: list[list[Any]] = field(default_factory=list)

    def to_json(self) -> str:
        steps = ",\n  ".join(json.dumps(step) for step in self.steps)
        return f'{{"seed": "{self.seed}", "blocking": {json.dumps(self.blocking)}, "steps": [\n  {steps}\n]}}'

    @staticmethod
    def from_json(text: str) -> History:
        return History(**json.loads(text))
