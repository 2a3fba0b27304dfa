"""One text for one JSON value, so that every retransmission of a request or a result has the same bytes."""

from __future__ import annotations

import json
from itertools import chain
from typing import Any

__all__ = ["canonical", "parse"]

# Whoever reads a value again, perhaps under a web framework, has less stack than who has written it.
_DEEPEST = 200
_TOO_DEEP = f"nested more than {_DEEPEST} deep"


def canonical(value: Any) -> str:
    """The canonical text: sorted keys, no spaces, ASCII. Raises TypeError or ValueError for what JSON cannot say, and
    for what is nested so deep that somebody could not read it.
    """
    try:
        text = _text(value)
        if not _all_keys_are_strings(value):  # they were sorted as what they were, numbers say, and are strings now
            text = _text(json.loads(text))
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if text.count("[") + text.count("{") > _DEEPEST:
        _check_depth(value)
    return text


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _all_keys_are_strings(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value) and all(map(_all_keys_are_strings, value.values()))
    return not isinstance(value, list | tuple) or all(map(_all_keys_are_strings, value))


def parse(text: str) -> Any:
    """The value of a text. Raises ValueError where it is not JSON."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(_DEEPEST):
        inner = [outer.values() if isinstance(outer, dict) else outer for outer in level if _has_parts(outer)]
        level = list(chain.from_iterable(inner))
    if any(map(_has_parts, level)):
        raise ValueError(_TOO_DEEP)


def _has_parts(value: Any) -> bool:
    return isinstance(value, dict | list | tuple)
