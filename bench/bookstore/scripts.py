"""The interactions as scripts of pgbench, with each of the ways to end a transaction.

Every script begins with SQL's PREPARE of its statements, once a session. What begins goes with the first statement in
one message, and what ends the first phase with the last one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from workload.population import CARDS, COUNTRIES, SHIP_TYPES, SUBJECTS, Size
from workload.statements import AUTHORISATION, STATEMENTS, preparation

__all__ = ["INTERACTIONS", "MIX", "SYSTEMS", "VARIABLES", "Interaction", "System", "script"]

# What a session begins with. `carts`, how many of the pool it has, is to be set, too.
VARIABLES = {"first": 1, "cart": 0, "lines": 0, "taken": 0}

# A UUID of version 7, as clients of pg_mip make them; what is kept of the request; and the functions that clients use.
XID = "TIME-7:m-8:m-:n"
TEXTS = "'{\"request\": :n}', '{\"done\": true}'"
MIP_PREPARE = f"EXECUTE mip_prepare({TEXTS})"
PROTOCOL = [
    "PREPARE mip_start (text, bigint) AS SELECT mip.start($1, $2)",
    "PREPARE mip_instances (text) AS SELECT * FROM mip.instances($1)",
    "PREPARE mip_prepare (text, text) AS SELECT mip.prepare_beside($1, $2)",
    "PREPARE mip_commit (text, bigint) AS SELECT mip.commit_beside($1, $2)",
    "PREPARE mip_one_phase (text, text) AS SELECT mip.commit_one_phase_beside($1, $2)",
]


@dataclass(frozen=True)
class System:
    """How transactions end. `runs`: for each time that the work is begun, what goes with its first statement, and what
    with its last one, None where it does not come to that. `then`: what comes afterwards.
    """

    name: str
    database: str
    runs: Sequence[tuple[Sequence[str], str | None]]
    then: Sequence[str] = ()
    settings: Sequence[str] = ()


def _instance(xinst: int, last: str | None = MIP_PREPARE) -> tuple[Sequence[str], str | None]:
    return [f"EXECUTE mip_start('{XID}', {xinst})"], last


PLANS = "SET plan_cache_mode = force_generic_plan"  # which others would come to after five executions
UNFLUSHED = "SET mip.synchronous_commit_prepared = off"
SYSTEMS = {
    system.name: system
    for system in (
        System("COMMIT", "heap", [(["BEGIN"], "COMMIT")]),
        System("2PC", "heap", [(["BEGIN"], f"PREPARE TRANSACTION '{XID}'")], [f"COMMIT PREPARED '{XID}'"]),
        System("MIP", "mip", [_instance(1)], [f"EXECUTE mip_commit('{XID}', 1)"]),
        System("MIP unflushed", "mip", [_instance(1)], [f"EXECUTE mip_commit('{XID}', 1)"], [UNFLUSHED]),
        System("MIP one-phase", "mip", [_instance(1, f"EXECUTE mip_one_phase({TEXTS})")]),
        # The original is left prepared; a sibling does the work again, and is committed.
        System("MIP fail-over", "mip", [_instance(1), _instance(2)], [f"EXECUTE mip_commit('{XID}', 2)"]),
        # The same, but the sibling is told with its first statement that another one is there, and commits that.
        System(
            "MIP adopted", "mip", [_instance(1), _instance(2, None)],
            [f"EXECUTE mip_instances('{XID}')\\; ROLLBACK", f"EXECUTE mip_commit('{XID}', 1)"],
        ),
        # Nobody decides.
        System("MIP in doubt", "mip", [_instance(1)]),
    )
}


@dataclass(frozen=True)
class Interaction:
    """`choices`: what is chosen at random. `work`: statements, and pgbench's commands (with a backslash); the first
    and the last are statements. One that `writes` is one transaction.
    """

    choices: Sequence[str]
    work: Sequence[str]
    writes: bool = False


CUSTOMER = "\\set customer random(1, :customers)"
ITEM = "\\set item random(1, :items)"
SUBJECT = f"\\set subject random(1, {len(SUBJECTS)})"
FIND_ADDRESS = [
    "\\set street random(1, 100000)",
    f"\\set country random(1, {len(COUNTRIES)})",
]
# A cart with three lines of the session's own, of those that `refill` keeps full.
POOLED_CART = ["\\set cart :client_id * :carts + :taken + 1", "\\set taken (:taken + 1) % :carts"]
BUY_CHOICES = [
    CUSTOMER, "\\set elsewhere random(1, 100)", *FIND_ADDRESS, f"\\set shipping random(1, {len(SHIP_TYPES)})",
    "\\set days random(1, 7)", f"\\set card random(1, {len(CARDS)})", "\\set number random(0, 9999999999999999)",
]  # fmt: skip
BUY_WORK = [
    "EXECUTE buyer(:customer) \\gset",
    "EXECUTE cart_total(:cart, :discount) \\gset",
    "\\if :elsewhere <= 5",
    "EXECUTE find_address(:street, :country) \\gset",
    "\\endif",
    "EXECUTE add_order(:customer, :sub_total, :lines, :shipping, :days, :address, :ship_to) \\gset",
    "EXECUTE add_lines(:order_id, :cart, :discount)",
    "EXECUTE take_stock(:cart)",
    f"EXECUTE pay(:order_id, :card, :number, '{AUTHORISATION}', :total, :country)",
    "EXECUTE empty_cart(:cart)",
]
CART_CHOICES = [CUSTOMER, ITEM, "\\set quantity random(1, 10)"]
CART_WORK = [
    "EXECUTE greet(:customer)",
    "\\if :cart = 0",
    "EXECUTE new_cart \\gset",
    "\\endif",
    "EXECUTE add_to_cart(:cart, :item, :quantity)",
    "\\set lines 1",
    "EXECUTE touch_cart(:cart)",
    "EXECUTE show_cart(:cart)",
]

INTERACTIONS = {
    "Buy Confirm": Interaction([*POOLED_CART, *BUY_CHOICES], BUY_WORK, writes=True),
    "Admin Confirm": Interaction(
        [ITEM, "\\set cost random(100, 999900) / 100.0", "\\set picture random(0, 99)"],
        ["EXECUTE change_item(:item, :cost, :picture)", "EXECUTE relate_item(:item)"],
        writes=True,
    ),
    "Shopping Cart": Interaction(CART_CHOICES, CART_WORK, writes=True),
    "Customer Registration": Interaction(
        [CUSTOMER, "\\set new random(1, 100)", "\\set discount random(0, 50)", *FIND_ADDRESS],
        [
            "EXECUTE greet(:customer)",
            "\\if :new <= 20",
            "EXECUTE find_address(:street, :country) \\gset",
            "EXECUTE register(:ship_to, :discount) \\gset",
            "\\endif",
            "EXECUTE log_in(:customer)",
        ],
        writes=True,
    ),
    "Buy Request": Interaction(
        [CUSTOMER], ["EXECUTE log_in(:customer)", "EXECUTE buyer(:customer)", "EXECUTE show_cart(:cart)"], writes=True
    ),
    # Whoever buys has put something into the cart before; and the session goes on with an empty one.
    "Buy Confirm of the mix": Interaction(
        [*CART_CHOICES, *BUY_CHOICES[1:]],
        [
            "EXECUTE greet(:customer)",
            "\\if :lines = 0",
            *CART_WORK[1:5],
            "\\endif",
            *BUY_WORK[:-1],
            "\\set lines 0",
            BUY_WORK[-1],
        ],
        writes=True,
    ),
    "New Cart": Interaction([], ["EXECUTE new_cart"], writes=True),  # no interaction of TPC-W: the least there is
    "Home": Interaction([CUSTOMER, ITEM], ["EXECUTE greet(:customer)", "EXECUTE promote(:item)"]),
    "New Products": Interaction([SUBJECT, ITEM], ["EXECUTE promote(:item)", "EXECUTE new_products(:subject)"]),
    "Best Sellers": Interaction([SUBJECT, ITEM], ["EXECUTE promote(:item)", "EXECUTE best_sellers(:subject)"]),
    "Product Detail": Interaction([ITEM], ["EXECUTE show_item(:item)"]),
    "Search Request": Interaction([ITEM], ["EXECUTE promote(:item)"]),
    "Search Results": Interaction(
        [ITEM, SUBJECT, "\\set kind random(1, 3)"],
        [
            "EXECUTE promote(:item)",
            "\\if :kind = 1",
            "EXECUTE search_subject(:subject)",
            "\\elif :kind = 2",
            "EXECUTE search_title(:item)",
            "\\else",
            "EXECUTE search_author(:item)",
            "\\endif",
        ],
    ),
    "Order Inquiry": Interaction([CUSTOMER], ["EXECUTE customer_name(:customer)"]),
    "Order Display": Interaction(
        [CUSTOMER],
        [
            "EXECUTE last_order(:customer) \\gset",
            "EXECUTE show_order(:order_id)",
            "EXECUTE show_lines(:order_id)",
        ],
    ),
    "Admin Request": Interaction([ITEM], ["EXECUTE show_item(:item)"]),
}

# The ordering mix, in hundredths of a per cent.
MIX = {
    "Home": 912, "New Products": 46, "Best Sellers": 46, "Product Detail": 1235, "Search Request": 1454,
    "Search Results": 1308, "Shopping Cart": 1353, "Customer Registration": 1286, "Buy Request": 1273,
    "Buy Confirm of the mix": 1018, "Order Inquiry": 25, "Order Display": 22, "Admin Request": 12, "Admin Confirm": 11,
}  # fmt: skip


def script(interaction: str, system: System, size: Size, *, alone: bool = True) -> str:
    """One interaction, for `pgbench -n` with VARIABLES. `alone`: no other interaction runs in the same session."""
    it = INTERACTIONS[interaction]
    used = [name for name in STATEMENTS if not alone or re.search(rf"EXECUTE {name}\b", "\n".join(it.work))]
    before = [PLANS, *system.settings, *map(preparation, used), *(PROTOCOL if system.database == "mip" else [])]
    lines = ["\\if :first", *(f"{statement};" for statement in before), "\\set first 0", "\\endif"]
    lines += [f"\\set customers {size.customers}", f"\\set items {size.items}", *it.choices]
    if it.writes:
        lines += ["\\set m random(100, 999)", "\\set n random(100000000000, 999999999999)"]
        for first, last in system.runs:
            lines += map(_ended, _transaction(it.work, first, last))
        lines += map(_ended, system.then)
    else:
        lines += map(_ended, it.work)
    now = f"{time.time_ns() // 1_000_000:012x}"
    return "\n".join(lines).replace("TIME", f"{now[:8]}-{now[8:]}") + "\n"


def _transaction(work: Sequence[str], first: Sequence[str], last: str | None) -> list[str]:
    """The work, with these statements in the messages of its first and its last; without the latter, only its first."""
    middle = list(work)
    middle[0] = "\\; ".join([*first, middle[0]])
    if last is None:
        return middle[:1]
    middle[-1] = f"{middle[-1]}\\; {last}"
    return middle


def _ended(line: str) -> str:
    return line if line.startswith("\\") or line.endswith("\\gset") else f"{line};"
