"""What is asked of the sites: transfers and orders, over one, two or three of them.

Everybody takes accounts and items first, in the order of SITES and by number, and then tallies in that order: so nobody
ever waits in a circle over two sites, which no site could see. Whoever wavers takes nothing that anybody else wants.
Who appends to lists takes those, in that order, and nothing else.
Every result has a `nonce` that no other attempt has, and `parts`: what each site has to say, which is in `effect` there
as well. A refusal is a result, too.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import zlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import workload.tx

__all__ = ["ACCOUNTS", "ITEMS", "LISTS", "SITES", "TRANSACTIONS", "Transaction"]

SITES = ("ash", "birch", "cedar")
ACCOUNTS, ITEMS, TALLIES = 40, 8, 4
LISTS = 4000
PRICE = 7

Handler = Callable[[Any, Any], Awaitable[Any]]
Isolation = Literal["read committed", "repeatable read", "serializable"]


class Site(workload.tx.Site, Protocol):
    def finish_with(self, sql: str, params: Any = None) -> None: ...
    def savepoint(self) -> AbstractAsyncContextManager[None]: ...


class Tx(Protocol):
    @property
    def xid(self) -> str: ...
    def __getitem__(self, site: str) -> Site: ...


@dataclass(frozen=True, slots=True)
class Transaction:
    sites: tuple[str, ...]
    isolation: Isolation
    handler: Handler


async def transfer(tx: Tx, request: Any, sites: tuple[str, ...]) -> Any:
    """From an account of one site to one of another, or of the same."""
    source, target = request["from"], request["to"]
    changes: dict[str, dict[int, int]] = {site: {} for site in sites}
    for (site, account), change in ((source, -request["amount"]), (target, request["amount"])):
        changes[site][account] = changes[site].get(account, 0) + change
    balance = await _lock(tx[source[0]], source[1]) if source[0] == sites[0] else None
    if balance is None:  # the target comes first
        await _lock(tx[target[0]], target[1])
        balance = await _lock(tx[source[0]], source[1])
    enough = balance >= request["amount"]
    parts: dict[str, Any] = {}
    for site in sites:
        parts[site] = await _change(tx, site, changes[site]) if enough else {}
    return await _conclude(tx, "done" if enough else "no money", parts)


async def shift(tx: Tx, request: Any, sites: tuple[str, ...]) -> Any:
    """A transfer within one site. Where the money does not suffice, a savepoint takes back what was begun."""
    (site,) = sites
    source, target, amount = request["from"], request["to"], request["amount"]
    for account in sorted({source, target}):
        balance = await _lock(tx[site], account)
        if account == source and balance < amount:
            return await _conclude(tx, "no money", {site: {}})
    try:
        async with tx[site].savepoint():
            part = await _change(tx, site, {source: -amount, target: amount})
            if (part["balances"][str(target)] + amount) % 5 == 0:
                raise _Refused
    except _Refused:
        return await _conclude(tx, "refused", {site: {}})
    return await _conclude(tx, "done", {site: part})


async def order(tx: Tx, request: Any, sites: tuple[str, ...]) -> Any:
    """Goods from ash, paid at birch, to the shop's account at cedar."""
    ash, birch, cedar = (tx[site] for site in sites)
    item, quantity, customer = request["item"], request["quantity"], request["customer"]
    total = quantity * PRICE
    stock = (await ash.fetch_one("SELECT i_stock FROM item WHERE i_id = %s FOR UPDATE", (item,))).i_stock
    balance = await _lock(birch, customer)
    shop = await _lock(cedar, request["shop"])
    status = "sold out" if stock < quantity else "no money" if balance < total else "done"
    parts: dict[str, Any] = {site: {} for site in sites}
    if status == "done":
        await ash.execute("UPDATE item SET i_stock = i_stock - %s WHERE i_id = %s", (quantity, item))
        parts[sites[0]] = {"item": item, "taken": quantity}
        parts[sites[1]] = await _change(tx, sites[1], {customer: -total})
        parts[sites[2]] = await _change(tx, sites[2], {request["shop"]: total})
        parts[sites[2]]["before"] = shop
    return await _conclude(tx, status, parts)


async def level(tx: Tx, request: Any, sites: tuple[str, ...]) -> Any:
    """Takes a tenth of what the richest of some accounts has, and gives it to the others: reads more than it writes."""
    first = sites[0]
    low, high = request["low"], request["high"]
    rows = await tx[first].fetch_all(
        "SELECT a_id, a_balance FROM account WHERE a_id BETWEEN %s AND %s ORDER BY a_balance DESC, a_id", (low, high)
    )
    richest = rows[0]
    share = richest.a_balance // 10 // (len(sites) - 1)
    changes = {first: {richest.a_id: -share * (len(sites) - 1)}}
    for site in sites[1:]:
        changes[site] = {low: share}
    parts = {site: await _change(tx, site, changes[site]) for site in sites}
    parts[first]["sum"] = sum(row.a_balance for row in rows)
    return await _conclude(tx, "done", parts)


async def restock(tx: Tx, request: Any, sites: tuple[str, ...]) -> Any:
    (site,) = sites
    await tx[site].execute(
        "UPDATE item SET i_stock = i_stock + %s WHERE i_id = %s", (request["quantity"], request["item"])
    )
    return await _conclude(tx, "done", {site: {"item": request["item"], "taken": -request["quantity"]}})


async def waver(tx: Tx, request: Any, sites: tuple[str, ...]) -> Any:
    """Waits before its first SQL, goes from site to site in any order, and may fail, every attempt in a way of its own:
    before it has begun, or when it is prepared at all sites but one, and the sweepers have heard of it.
    """
    await asyncio.sleep(random.choice((0.0, 3.0)) * random.random())
    way = random.choice(("well", "well", "well", "not at all", "badly", "badly"))
    if way == "not at all":
        raise _Refused
    order = random.sample(sites, len(sites))
    result = await _conclude(tx, "done", {site: {} for site in order}, hot=False)
    if way == "badly":
        tx[random.choice(sites)].finish_with(FAIL_AFTER, (random.choice((0, 2, 3, 4)) * 1.1,))
    return result


FAIL_AFTER = "SELECT 1 / (pg_sleep(%s)::text IS NULL)::int"


class _Refused(Exception):
    pass


async def lists(tx: Tx, request: Any, sites: tuple[str, ...]) -> Any:
    """Reads some lists, and appends to some. The result has the steps, which say what others it has to come before, and
    behind.
    """
    nonce = secrets.token_hex(8)
    steps: dict[str, list[Any]] = {site: [] for site in sites}
    for site, low, high in request["read"]:
        rows = await tx[site].fetch_all(
            "SELECT l_id, l_elements FROM list WHERE l_id BETWEEN %s AND %s ORDER BY l_id", (low, high)
        )
        steps[site] += [["read", row.l_id, row.l_elements] for row in rows]
    for number, (site, name) in enumerate(request["append"]):
        row = await tx[site].fetch_one(
            "UPDATE list SET l_elements = l_elements || %s WHERE l_id = %s RETURNING l_elements",
            ([f"{nonce}.{number}"], name),
        )
        steps[site] += [["append", name, f"{nonce}.{number}"], ["read", name, row.l_elements]]
    return await _conclude(tx, "done", {site: {"steps": steps[site]} for site in sites}, nonce, hot=False)


async def _lock(site: Site, account: int) -> int:
    row = await site.fetch_one("SELECT a_balance FROM account WHERE a_id = %s FOR NO KEY UPDATE", (account,))
    return int(row.a_balance)


async def _change(tx: Tx, site: str, changes: Mapping[int, int]) -> Any:
    balances = {}
    for account, change in sorted(changes.items()):
        row = await tx[site].fetch_one(
            "UPDATE account SET a_balance = a_balance + %s WHERE a_id = %s RETURNING a_balance", (change, account)
        )
        balances[str(account)] = row.a_balance
        await tx[site].execute(
            "INSERT INTO entry (n_key, n_account, n_change) VALUES (%s, %s, %s)", (tx.xid, account, change)
        )
    return {"balances": balances, "changes": {str(account): change for account, change in changes.items()}}


async def _conclude(
    tx: Tx, status: str, parts: dict[str, Any], nonce: str | None = None, *, hot: bool = True
) -> Any:
    nonce = nonce or secrets.token_hex(8)
    tally = zlib.crc32(tx.xid.encode()) % TALLIES
    for site, part in parts.items():
        part["status"] = status
        row = await tx[site].fetch_one(
            "INSERT INTO effect (e_key, e_nonce, e_part) VALUES (%s, %s, %s) RETURNING e_id",
            (tx.xid, nonce, json.dumps(part)),
        )
        part["effect"] = row.e_id
        if hot:
            await tx[site].execute("UPDATE tally SET t_count = t_count + 1 WHERE t_id = %s", (tally,))
        else:
            await tx[site].execute("INSERT INTO tally VALUES (%s, 1)", (TALLIES + row.e_id,))
    return {"nonce": nonce, "status": status, "parts": parts}


def _over(handler: Callable[..., Awaitable[Any]], *sites: str, isolation: Isolation = "read committed") -> Transaction:
    async def run(tx: Any, request: Any) -> Any:
        return await handler(tx, request, sites)

    return Transaction(sites, isolation, run)


TRANSACTIONS = {
    "order": _over(order, *SITES),
    "transfer_ash_birch": _over(transfer, "ash", "birch"),
    "transfer_birch_cedar": _over(transfer, "birch", "cedar"),
    "transfer_ash_cedar": _over(transfer, "ash", "cedar", isolation="repeatable read"),
    "level": _over(level, *SITES, isolation="repeatable read"),
    "shift_ash": _over(shift, "ash"),
    "shift_birch": _over(shift, "birch", isolation="repeatable read"),
    "shift_cedar": _over(shift, "cedar"),
    "restock": _over(restock, "ash"),
    "waver": _over(waver, *SITES),
    "waver_birch": _over(waver, "birch"),
    "lists": _over(lists, *SITES, isolation="serializable"),
    "lists_ash_birch": _over(lists, "ash", "birch", isolation="serializable"),
    "lists_birch_cedar": _over(lists, "birch", "cedar", isolation="serializable"),
    "lists_cedar": _over(lists, "cedar", isolation="serializable"),
}
