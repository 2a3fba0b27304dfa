"""An app server of bench/coordinators.py as node.py, of pgmip's synchronous App: each session is a thread.

    python -m bench.nodes.threads CONTENDER NAME LEFT RIGHT SESSIONS ACCOUNTS FOLDER JOURNAL [REQUESTS]
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pgmip.sync import App, Tx

from ..places import SITES
from .requests import DEADLINE, MOVE, PAUSE, Journal, random_request, read_requests


def app_of(sites: dict[str, str], sessions: int) -> App:
    app = App(
        sites, threads=sessions, pool_size=sessions, pool_min_size=sessions, deadline=DEADLINE, attempts=10**6
    )

    @app.transaction(sites=SITES)
    def transfer(tx: Tx, request: Any) -> Any:
        tx.left.finish_with(MOVE, (-1, request[0]))
        tx.right.finish_with(MOVE, (1, request[1]))
        return True

    return app


class Node:
    def __init__(self, app: App, journal: Journal) -> None:
        self.app = app
        self.journal = journal
        self.over = False

    def answer(self, key: str, source: int, target: int) -> None:
        began = self.journal.begins(key, source, target)
        while not self.over:
            try:
                self.app.submit("transfer", [source, target], xid=key)
                self.journal.answered(key, began)
                return
            except Exception as error:
                self.journal.failed(key, error)
                time.sleep(PAUSE)

    def loop(self, accounts: int) -> None:
        while not self.over:
            self.answer(*random_request(accounts))


def main(
    contender: str, name: str, left: str, right: str, sessions: str, accounts: str, folder: str, journal: str,
    requests: str = "",
) -> None:  # fmt: skip
    node = Node(app_of(dict(zip(SITES, (left, right), strict=True)), int(sessions)), Journal(Path(journal)))
    with node.app:
        print("ready", flush=True)
        if not sys.stdin.readline():
            os._exit(0)
        if requests:
            threads = [threading.Thread(target=node.answer, args=one) for one in read_requests(Path(requests))]
        else:
            threads = [threading.Thread(target=node.loop, args=(int(accounts),)) for _ in range(int(sessions))]
        for thread in threads:
            thread.start()
        sys.stdin.read()
        node.over = True
        for thread in threads:
            thread.join(2)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
