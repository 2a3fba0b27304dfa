"""What a request is answered with, for good, and the text of it that the sites keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ._json import canonical, parse
from .exceptions import SubmitError

__all__ = ["Answer", "Recorded"]

_REFUSED = "refused "  # no JSON begins so


@dataclass(frozen=True, slots=True)
class Recorded:
    """What an instance is prepared with: what its handler has returned, or refused the request with."""

    result: Any
    refused: bool = False

    @property
    def text(self) -> str:
        """Raises TypeError or ValueError where the result is not JSON."""
        return (_REFUSED if self.refused else "") + canonical(self.result)

    @classmethod
    def read(cls, text: str) -> Recorded:
        """Raises ValueError where the text is neither."""
        return cls(parse(text.removeprefix(_REFUSED)), text.startswith(_REFUSED))


@dataclass(frozen=True, slots=True)
class Answer:
    """The winner's answer, as one call is told it."""

    recorded: Recorded
    replayed: bool
    """Whether it is of another call's instance, an earlier one's or one's beside this one."""
    error: SubmitError | None
    """What `App.submit` raises instead of returning the result: Refused or Decided, which have it, too."""

    @property
    def result(self) -> Any:
        return self.recorded.result

    def told(self) -> Any:
        """The result, or raises `error`."""
        if self.error is not None:
            raise self.error
        return self.result
