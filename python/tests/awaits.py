"""A second copy of the library, `pgmip_awaits`, in which any one `await` can be made to fail.

Its modules are compiled from pgmip's own files, with every `await`, `async with` and `async for` sent through here. So
nobody has to keep a list of them. Each has a name (`_pool.py:162`), and one that runs several times has numbers.
"""

from __future__ import annotations

import ast
import asyncio
import importlib.machinery
import importlib.util
import inspect
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import psycopg

import pgmip

__all__ = ["ERRORS", "EXPECTED", "NAME", "Bug", "CallerCancelled", "Fatal", "Injector", "Moment", "Strike", "injector"]

NAME = "pgmip_awaits"
_ROOT = Path(pgmip.__file__).parent
_HOOKS = {"await": "_pgmip_await", "with": "_pgmip_with", "for": "_pgmip_for"}

_SILENT = {"AsyncExitStack", "timeout", "timeout_at"}  # they neither wait at their ends nor fail there
_CLEANING = {
    *("aclose", "begun_here", "close", "_close", "discard", "_end_asking", "ended", "give", "_give_back", "putconn"),
    "uninterrupted",
}

Moment = Literal["before", "after"]


class Bug(Exception):
    """Nobody expects it."""


class Fatal(BaseException):
    """Nor this one, which nobody has any business to catch."""


class CallerCancelled(asyncio.CancelledError):
    """Is not raised: somebody cancels the caller at that moment."""


ERRORS: list[Callable[[], BaseException]] = [
    lambda: Bug("injected"),
    lambda: psycopg.OperationalError("injected"),
    lambda: asyncio.CancelledError("injected"),
    lambda: Fatal("injected"),
    lambda: CallerCancelled("injected"),
]
EXPECTED = (Bug, Fatal, psycopg.OperationalError, asyncio.CancelledError)


@dataclass(frozen=True, slots=True, order=True)
class Strike:
    """Where to fail: at the `number`-th time (from 1) that the await of this name runs, before or after it does."""

    name: str
    number: int
    moment: Moment


class Injector:
    """Raises an error at a strike."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        """Of all that has been compiled."""
        self.ran: Counter[str] = Counter()
        """How often each has run since it was armed."""
        self.functions: dict[str, str] = {}
        """The function that each is in."""
        self.cleaning: set[str] = set()
        """Those that clean up. That they are not even begun is beyond anybody's control."""
        self.struck = False
        self._sleeps = False
        self._strike: Strike | None = None
        self._error: BaseException | None = None
        self._instead: Callable[[], object] | None = None

    @contextmanager
    def armed(
        self, strike: Strike | None, error: BaseException | None, instead: Callable[[], object] | None = None
    ) -> Iterator[None]:
        """`instead`: what to do there instead of raising the error."""
        self.ran.clear()
        self.struck, self._strike, self._error, self._instead = False, strike, error, instead
        try:
            yield
        finally:
            self._strike = None

    @contextmanager
    def asleep(self) -> Iterator[None]:
        """What runs meanwhile does not count."""
        self._sleeps = True
        try:
            yield
        finally:
            self._sleeps = False

    def _moment(self, name: str) -> Moment | None:
        if self._sleeps:
            return None
        self.ran[name] += 1
        strike = self._strike
        if strike is None or (strike.name, strike.number) != (name, self.ran[name]):
            return None
        if self._instead is not None:
            self.struck = True
            self._instead()
            return None
        return strike.moment

    def _raise(self) -> None:
        assert self._error is not None
        self.struck = True
        raise self._error

    async def await_(self, awaitable: Awaitable[Any], name: str) -> Any:
        moment = self._moment(name)
        if moment == "before":
            _close(awaitable)
            self._raise()
        result = await awaitable
        if moment == "after":
            await _taken_back(result)
            self._raise()
        return result


def _close(awaitable: Any) -> None:
    """Never to be run, nor what has been handed to it; what runs already is left alone."""
    if inspect.iscoroutine(awaitable) and inspect.getcoroutinestate(awaitable) == inspect.CORO_CREATED:
        for inner in list(awaitable.cr_frame.f_locals.values()):
            _close(inner)
        awaitable.close()
    elif asyncio.isfuture(awaitable) and not isinstance(awaitable, asyncio.Task):
        awaitable.add_done_callback(lambda future: future.cancelled() or future.exception())  # nobody is there to see


async def _taken_back(result: Any) -> None:
    """Who raises hands nothing over."""
    if isinstance(result, psycopg.AsyncConnection):
        pool = getattr(result, "_pool", None)
        await result.close()
        if pool is not None:
            await pool.putconn(result)


injector = Injector()


class _With:
    """An asynchronous context manager that may fail at both ends. It is left wherever it has been entered."""

    def __init__(self, manager: Any, name: str) -> None:
        self._manager = manager
        self._name = name

    async def __aenter__(self) -> Any:
        moment = injector._moment(self._name + " enter")
        if moment == "before":
            injector._raise()
        entered = await self._manager.__aenter__()
        if moment == "after":
            await self._leave()
        return entered

    async def __aexit__(self, *failure: Any) -> Any:
        moment = injector._moment(self._name + " exit")
        if moment == "before":
            await self._leave()
        answer = await self._manager.__aexit__(*failure)
        if moment == "after":
            injector._raise()
        return answer

    async def _leave(self) -> None:
        try:
            injector._raise()
        except BaseException as error:
            await self._manager.__aexit__(type(error), error, error.__traceback__)
            raise


class _For:
    def __init__(self, iterable: Any, name: str) -> None:
        self._iterator = aiter(iterable)
        self._name = name

    def __aiter__(self) -> _For:
        return self

    async def __anext__(self) -> Any:
        return await injector.await_(anext(self._iterator), self._name)


# -- the copy ------------------------------------------------------------------------------------------------------


class _Instrument(ast.NodeTransformer):
    def __init__(self, file: str) -> None:
        self._file = file
        self._seen: Counter[str] = Counter()
        self._function = ""

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        outer, self._function = self._function, node.name
        try:
            return self.generic_visit(node)
        finally:
            self._function = outer

    def visit_Await(self, node: ast.Await) -> ast.AST:
        node.value = self._through("await", node.value, ("",))
        return self.generic_visit(node)

    def visit_AsyncWith(self, node: ast.AsyncWith) -> ast.AST:
        for item in node.items:
            if _called(item.context_expr) in _SILENT:
                continue
            item.context_expr = self._through("with", item.context_expr, (" enter", " exit"))
        return self.generic_visit(node)

    def visit_AsyncFor(self, node: ast.AsyncFor) -> ast.AST:
        node.iter = self._through("for", node.iter, ("",))
        return self.generic_visit(node)

    def _through(self, hook: str, value: ast.expr, ends: Sequence[str]) -> ast.expr:
        name = f"{self._file}:{value.lineno}"
        self._seen[name] += 1
        if self._seen[name] > 1:
            name += "abcdef"[self._seen[name] - 1]
        # a semaphore is given back at once: nothing there can fail
        if _called(value) in _CLEANING or ast.unparse(value).endswith("_slots"):
            injector.cleaning |= {name + end for end in ends}
        injector.names |= {name + end for end in ends}
        injector.functions |= {name + end: f"{self._file}:{self._function}" for end in ends}
        call = ast.Call(ast.Name(_HOOKS[hook], ast.Load()), [value, ast.Constant(name)], [])
        return ast.fix_missing_locations(ast.copy_location(call, value))


def _called(value: ast.expr) -> str:
    """The last word of the name of what is called there."""
    return ast.unparse(value.func).rpartition(".")[2] if isinstance(value, ast.Call) else ""


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> Any:  # without the cache, which is the original's
        path = self.get_filename(fullname)
        tree = _Instrument(str(Path(path).relative_to(_ROOT))).visit(ast.parse(self.get_data(path), path))
        return compile(tree, path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__.update(_pgmip_await=injector.await_, _pgmip_with=_With, _pgmip_for=_For)
        super().exec_module(module)


class _Finder(MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        first, *rest = fullname.split(".")
        if first != NAME:
            return None
        file = _ROOT.joinpath(*rest)
        package = file.is_dir()
        file = file / "__init__.py" if package else file.with_suffix(".py")
        return importlib.util.spec_from_file_location(
            fullname, file, loader=_Loader(fullname, str(file)),
            submodule_search_locations=[str(file.parent)] if package else None,
        )  # fmt: skip


sys.meta_path.insert(0, _Finder())
