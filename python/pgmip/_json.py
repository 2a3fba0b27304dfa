"""One text for one JSON value, so that every retransmission of a request or a result has the same bytes."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["canonical", "parse"]


def canonical(value: Any) -> str:
    """The canonical text: sorted keys, no spaces, ASCII. Raises TypeError or ValueError for what JSON cannot say."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def parse(text: str) -> Any:
    return json.loads(text)
