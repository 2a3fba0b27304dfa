"""What a process says that is forked in the middle of a test."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Callable
from typing import Any

__all__ = ["in_a_child", "refusal"]


def in_a_child(work: Callable[[], str]) -> str:
    """What `work` returns in a child process that is forked here and now, and ends without a word to anybody."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # there are threads, from 3.12 on
        pid = os.fork()
    if pid == 0:
        try:
            told = work()
            gc.collect()
            os.write(writer, told.encode())
        except BaseException as error:
            os.write(writer, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as told:
        answer = told.read()
    os.waitpid(pid, 0)
    return answer


def refusal(work: Callable[[], Any]) -> str:
    """The error with which it is refused, or what it returns."""
    try:
        return repr(work())
    except RuntimeError as error:
        return str(error)
