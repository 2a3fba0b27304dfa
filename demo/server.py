"""An app server: one process that serves Buy Confirm over HTTP until somebody kills it.

`POST /buy_confirm` with `Idempotency-Key`; the body is the request, the answer is the result, both JSON.
"""

from __future__ import annotations

import asyncio
import json
import logging
import multiprocessing
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pgmip
import pgmip.http
import uvicorn
from psycopg.conninfo import make_conninfo
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from workload.plain import Coordinator

from .buy_confirm import buy_confirm
from .faults import die_if_armed

Mode = Literal["mip", "plain"]


@dataclass(frozen=True, slots=True)
class Config:
    mode: Mode
    slot: int
    generation: int
    port: int
    sites: dict[str, str]
    folder: Path  # of faults, logs of decisions and messages

    @property
    def name(self) -> str:
        """Of this life of the server; the sites see it as the application's name."""
        return f"shop-{self.slot}.{self.generation}"

    @property
    def decisions(self) -> Path:
        return self.folder / f"{self.name}.decisions"

    def step(self, point: str) -> None:
        die_if_armed(self.folder, self.slot, point)


def serve(config: Config) -> None:
    """The life of a server."""
    logging.basicConfig(filename=config.folder / f"shop-{config.slot}.log", level=logging.WARNING)
    sites = {
        site: make_conninfo(conninfo, application_name=config.name) for site, conninfo in config.sites.items()
    }
    application = {"mip": _mip, "plain": _plain}[config.mode](config, sites)
    options = uvicorn.Config(
        application, host="127.0.0.1", port=config.port, access_log=False, log_config=None, lifespan="auto"
    )
    asyncio.run(_serve(uvicorn.Server(options)))


async def _serve(server: uvicorn.Server) -> None:
    """Until somebody kills it, or the demo itself is gone."""
    demo = multiprocessing.parent_process()
    if demo is not None:
        asyncio.get_running_loop().add_reader(demo.sentinel, os._exit, 1)
    await server.serve()


def _mip(config: Config, sites: dict[str, str]) -> Any:
    app = pgmip.App(sites)
    app.transaction(sites=("store", "bank"))(buy_confirm)
    app.on_step(lambda step: config.step(step.name))
    return pgmip.http.asgi(app)


def _plain(config: Config, sites: dict[str, str]) -> Any:
    coordinator = Coordinator(config.name, sites, config.decisions, config.step, key_site="store")

    async def endpoint(request: Request) -> Response:
        try:
            body = json.loads(await request.body())
            answer = await coordinator.submit(buy_confirm, body, request.headers["idempotency-key"])
        except Exception:
            logging.exception("buy_confirm failed")
            return Response("please try again", 503)
        return Response(answer, media_type="application/json")

    return Starlette(routes=[Route("/buy_confirm", endpoint, methods=["POST"])])
