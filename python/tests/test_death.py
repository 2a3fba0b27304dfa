"""An app server is killed at every named step of the protocol, as a process, and another one takes the request over."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest
from shop import BUY, Shop, kill_server_at

from pgmip import App
from pgmip.app import StepName

pytestmark = pytest.mark.integration



@pytest.mark.parametrize("mode", ["parallel", "serial"])
@pytest.mark.parametrize("step_name", get_args(StepName))
async def test_killed_at(server: Callable[..., App], shop: Shop, step_name: str, mode: str) -> None:
    xid = f"killed-{step_name}-{mode}"
    await kill_server_at(shop, step_name, xid, mode)
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
