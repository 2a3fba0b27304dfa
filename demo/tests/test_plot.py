"""demo.svg says what was measured."""

from __future__ import annotations

import re
from pathlib import Path

from demo.client import Asked
from demo.outcome import Outcome
from demo.plot import plot
from demo.requests import requests


def outcome(*latencies: float) -> Outcome:
    orders = requests(len(latencies))
    asked = [Asked(order, began=1.0, ended=1.0 + wait) for order, wait in zip(orders, latencies, strict=True)]
    return Outcome("a run", 0.0, 2.0, len(asked), asked, [], 0, 0.0, [])


def test_the_axis_is_labelled_with_its_numbers(tmp_path: Path) -> None:
    plot([outcome(0.004, 0.02), outcome(0.03, 12.0)], tmp_path / "demo.svg")
    text = re.findall(r">([^<>]+)</text>", (tmp_path / "demo.svg").read_text(encoding="utf-8"))
    assert {"0.01", "0.1", "1", "10"} <= set(text)
    assert "0.0" not in text
