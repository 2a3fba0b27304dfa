"""An app server is killed at every named step of the protocol, as a process, and another one takes the request over."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
import shop as shop_module
from shop import Shop

from pgmip import App
from pgmip.app import StepName

pytestmark = pytest.mark.integration

BUY = {"item": 1, "qty": 2}


@pytest.mark.parametrize("mode", ["parallel", "serial"])
@pytest.mark.parametrize("step_name", get_args(StepName))
async def test_killed_at(server: Callable[..., App], shop: Shop, step_name: str, mode: str) -> None:
    xid = f"killed-{step_name}-{mode}"
    script = Path(shop_module.__file__)
    conninfos = shop.conninfos()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c",
        "import runpy, sys; sys.path[:0] = sys.argv[1:3]; runpy.run_path(sys.argv[3])['die_at'](*sys.argv[4:])",
        str(script.parent), str(script.parent.parent), str(script),
        step_name, xid, mode, *conninfos.values(),
    )  # fmt: skip
    assert await process.wait() == -signal.SIGKILL
    if mode == "serial":
        in_doubt = [len(shop.sql(site, "SELECT * FROM mip.in_doubt")) for site in ("store", "bank")]
        assert (
            in_doubt
            == {
                "begun": [0, 0],
                "prepared-first-site": [1, 0],
                "prepared-all": [1, 1],
                "committed-first-site": [0, 1],
                "committed-all": [0, 0],
            }[step_name]
        )
    result = await server().submit("buy", BUY, xid=xid)
    shop.assert_once(xid, result)
    assert await server().submit("buy", BUY, xid=xid) == result
    shop.assert_clean()
