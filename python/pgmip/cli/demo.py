"""`pgmip demo`: a request whose app server is killed, on private clusters, in half a minute."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

from rich.text import Text

from ..app import App, Step, Tx
from ..sweeper import Sweeper
from ..testing import Cluster, ClusterError, extension_installed
from ..xinst import new_xid
from .errors import CliError, ExitCode
from .options import JsonOption, run
from .output import STYLES, Output
from .status import rendered
from .survey import survey

__all__ = ["demo"]

_SCHEMA = {
    "store": "CREATE TABLE orders (o_id bigint GENERATED ALWAYS AS IDENTITY, item text) USING mip",
    "bank": "CREATE TABLE account (a_id int PRIMARY KEY, balance int) USING mip; INSERT INTO account VALUES (1, 100)",
}
_REQUEST = {"item": "a book", "price": 7}


def demo(json: JsonOption = False) -> None:
    """Show on two private databases how an order survives its app server. Takes half a minute, leaves nothing behind.

    Needs the programs of a PostgreSQL server with the extension pg_mip, and an ordinary user.
    """
    run("demo", json, _demo)


async def _demo(output: Output) -> ExitCode:
    clusters = await asyncio.to_thread(_start)
    try:
        sites = {name: cluster.conninfo() for name, cluster in clusters.items()}
        acts = []
        for title, step, ending in (
            ("killed when only the store had prepared; the client asks another server", "prepared-first-site", _retry),
            ("killed when all had prepared; the client never asks again, a sweeper comes", "prepared-all", _sweep),
        ):
            acts.append(await _act(output, clusters, sites, title, step, ending))
        once = [len(acts)] * 2 == [_count(clusters), _paid(clusters)]
        if output.json:
            output.document({"command": "demo", "exactly_once": once, "acts": acts})
        else:
            output.line()
            output.line(
                Text(f"{_count(clusters)} orders, {_paid(clusters)} payments, for {len(acts)} requests.", "bold")
            )
        return ExitCode.OK if once else ExitCode.PROBLEMS
    finally:
        for cluster in clusters.values():
            await asyncio.to_thread(cluster.remove)


def _start() -> dict[str, Cluster]:
    if os.geteuid() == 0:
        raise CliError(
            "PostgreSQL refuses to run as root", hint="run it as an ordinary user: runuser -u postgres -- pgmip demo"
        )
    clusters: dict[str, Cluster] = {}
    try:
        if not extension_installed():
            Cluster()  # says so where there is no server at all
            raise CliError(
                "the extension pg_mip is not installed for the PostgreSQL server found here",
                hint="make install, or set PG_CONFIG to the pg_config of a server that has it",
            )
        for name, schema in _SCHEMA.items():
            clusters[name] = Cluster(name, settings={"mip.site_name": name})
            clusters[name].start()
            clusters[name].run_sql(f"CREATE EXTENSION pg_mip; {schema}")
    except BaseException as error:
        for cluster in clusters.values():
            cluster.remove()
        if isinstance(error, ClusterError):
            raise CliError(str(error)) from None
        raise
    return clusters


def _app(sites: Mapping[str, str]) -> App:
    app = App(sites)

    @app.transaction(sites=("store", "bank"))
    async def buy(tx: Tx, request: Any) -> Any:
        order = await tx.store.fetch_one("INSERT INTO orders (item) VALUES (%s) RETURNING o_id", (request["item"],))
        await tx.bank.execute("UPDATE account SET balance = balance - %s", (request["price"],))
        return {"order": order.o_id}

    return app


async def _act(
    output: Output, clusters: Mapping[str, Cluster], sites: Mapping[str, str], title: str, step: str, ending: Any
) -> dict[str, Any]:
    xid = new_xid()
    if not output.json:
        output.line()
        output.line(Text(f"An order {xid}: its server is {title}.", "bold"))
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "from pgmip.cli.demo import doomed; doomed()", step, xid, *sites.values()
    )
    status = await server.wait()
    if status != -signal.SIGKILL:
        raise CliError(f"the server of the demo ended with status {status}")
    found = await survey(sites, limit=10, timeout=10)
    if not output.json:
        output.line(Text("  killed with SIGKILL; what it leaves:", STYLES["info"]))
        output.console.print(rendered(found))
    result = await ending(sites, xid)
    if not output.json:
        output.line(Text(f"  finished: {result}", STYLES["ok"]))
    return {"xid": xid, "killed_at": step, "in_doubt": found.total, "result": result}


async def _retry(sites: Mapping[str, str], xid: str) -> Any:
    async with _app(sites) as other:
        return await other.submit("buy", _REQUEST, xid=xid)


async def _sweep(sites: Mapping[str, str], xid: str) -> Any:
    async with _app(sites) as other:
        await Sweeper(other, older_than=0).sweep()
        return await other.submit("buy", _REQUEST, xid=xid)  # only to see it


def _count(clusters: Mapping[str, Cluster]) -> int:
    return len(clusters["store"].run_sql("SELECT FROM orders"))


def _paid(clusters: Mapping[str, Cluster]) -> int:
    ((balance,),) = clusters["bank"].run_sql("SELECT balance FROM account")
    return (100 - int(balance)) // _REQUEST["price"]  # type: ignore[operator]


def doomed() -> None:
    """The body of the app server that is killed: STEP XID CONNINFO CONNINFO are its arguments."""
    step_name, xid, *conninfos = sys.argv[1:]
    app = _app(dict(zip(_SCHEMA, conninfos, strict=True)))
    app.parallel = False

    def die(step: Step) -> None:
        if step.name == step_name:
            os.kill(os.getpid(), signal.SIGKILL)

    app.on_step(die)
    asyncio.run(app.submit("buy", _REQUEST, xid=xid))
