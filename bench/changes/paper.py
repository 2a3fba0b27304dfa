"""What the paper has measured (Tables 4 and 5): PostgreSQL 8.2, a Pentium 4 at 3 GHz. DbLayer_v1 has triggers in SQL,
DbLayer_v2 is what it proposes.
"""

from __future__ import annotations

__all__ = ["APPLIED_MS", "BARE_MS", "CHANGED_MS", "EXTRACTED_MS", "SIZES", "V1", "V2", "ratio"]

V1, V2 = "DbLayer_v1", "DbLayer_v2"
# Of 10,000 rows, in milliseconds
BARE_MS = {"I": 1305, "U": 1251, "D": 914}
CHANGED_MS = {
    V1: {"I": 13294, "U": 13886, "D": 12524},
    V2: {"I": 1797, "U": 1725, "D": 1754},
}
EXTRACTED_MS = {V1: {"I": 16606, "U": 22818}, V2: {"I": 1595, "U": 184}}
APPLIED_MS = {V1: 63297, V2: 2343}
SIZES = {V1: 350180, V2: 210016}  # bytes; the paper does not say of which changes


def ratio(layer: str, op: str) -> float:
    """Of the changes themselves to those of bare PostgreSQL."""
    return CHANGED_MS[layer][op] / BARE_MS[op]
