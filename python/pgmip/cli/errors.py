"""How a command ends: exit codes, and the error that a user is told in one line."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["CliError", "ExitCode"]


class ExitCode(IntEnum):
    """What `$?` says. Stable: scripts rely on it."""

    OK = 0
    PROBLEMS = 1
    """The command worked and found something wrong, or could not do what it was asked for."""
    USAGE = 2
    """Wrong options, configuration or names; nothing was done."""
    UNREACHABLE = 3
    """A site could not be asked, so the answer is incomplete, or nothing was done."""
    UNKNOWN_XID = 4
    """No site knows the XID."""
    INTERRUPTED = 130
    CLOSED_PIPE = 141


class CliError(Exception):
    """Ends a command with a message, never with a traceback."""

    def __init__(self, message: str, code: ExitCode = ExitCode.PROBLEMS, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint
