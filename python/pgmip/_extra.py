"""What needs a package that not everybody installs says which, and how to get it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["missing", "needed_for"]


def missing(what: str, package: str | None, extra: str) -> str:
    """That `what` needs a package, which is there with the extra."""
    return f"{what} needs {package}: in the clone of pg_mip, pip install './python[{extra}]'"


@contextmanager
def needed_for(what: str, extra: str) -> Iterator[None]:
    """Where a package that the block imports is missing, ModuleNotFoundError says what to do."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(missing(what, error.name, extra), name=error.name) from error
