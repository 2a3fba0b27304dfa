"""Beside it: the same orders by plain two-phase commit, at the same servers, over tables of its own.

The coordinator is workload's. What a server leaves prepared when it dies, its log says what to do with; that is there
again when the server is.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from workload import plain

from .handlers import SITES, TRANSACTIONS

__all__ = ["PATH", "both", "schema", "start"]

PATH = "/plain"
_PAUSE = 0.1
_SEARCH_PATH = "-c search_path=plain"


def schema(tables: str) -> str:
    """The same tables once more, for plain two-phase commit."""
    tables = tables.replace("USING mip", "")
    return f"CREATE SCHEMA plain; SET search_path = plain; {tables}; {plain.IDEMPOTENCY}"


async def start(
    name: str, life: int, sites: dict[str, str], folder: Path, on_step: Callable[[str], object]
) -> Starlette:
    """A server that finishes what its earlier lives had left, as soon as it reaches all sites, and serves at once."""
    reached = {site: make_conninfo(conninfo, options=_SEARCH_PATH) for site, conninfo in sites.items()}

    async def recover() -> None:
        for earlier in range(1, life):
            while True:
                try:
                    await plain.recover(_named(name, earlier), reached, _log(folder, name, earlier))
                    break
                except psycopg.Error:
                    await asyncio.sleep(_PAUSE)

    recovery = asyncio.create_task(recover())
    log = _log(folder, name, life)
    coordinator = plain.Coordinator(_named(name, life), reached, log, on_step, key_site=SITES[0])
    order = TRANSACTIONS["order"].handler

    async def endpoint(request: Request) -> Response:
        if recovery.done():
            recovery.result()
        try:
            body = json.loads(await request.body())
            # Whoever goes away does not call off what is being decided.
            call = asyncio.ensure_future(coordinator.submit(order, body, request.headers["idempotency-key"]))
            return Response(await asyncio.shield(call), media_type="application/json")
        except Exception:
            logging.getLogger(__name__).exception("order failed")
            return Response("please try again", 503)

    return Starlette(routes=[Route(f"{PATH}/order", endpoint, methods=["POST"])])


def both(application: Any, beside: Starlette) -> Any:
    """Both under one roof, by path."""

    async def dispatch(scope: Any, receive: Any, send: Any) -> None:
        chosen = beside if scope.get("path", "").startswith(f"{PATH}/") else application
        await chosen(scope, receive, send)

    return dispatch


def _named(name: str, life: int) -> str:
    return f"{name}.{life}"


def _log(folder: Path, name: str, life: int) -> Path:
    return folder / f"{name}.{life}.decisions"
