"""A standby that counts as in step holds all that is visible at its primary."""

from __future__ import annotations

import os
import signal
from importlib import resources

import psycopg

from faults import auditor
from faults.sites import DATABASE, Site


def decide(site: Site, xid: str) -> None:
    """Two instances, one of which wins; that the other lost is noted, and nobody waits for the note's flush."""
    for xinst in (1, 2):
        with psycopg.connect(site.conninfo(), autocommit=True) as conn:
            conn.execute("BEGIN")
            conn.execute("SELECT mip.begin(%s, %s)", (xid, xinst))
            conn.execute("UPDATE tally SET t_count = t_count + 1 WHERE t_id = 1")
            conn.execute("SELECT FROM mip.prepare('request', 'result')")
    site.primary.run_sql(f"SELECT FROM mip.commit('{xid}', 2)")


def test_in_step_though_nobody_flushes() -> None:
    site = Site("ash", (resources.files("faults") / "schema.sql").read_text())
    try:
        site.start()
        assert site.standby is not None
        [(walwriter,)] = site.primary.run_sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")
        os.kill(walwriter, signal.SIGSTOP)
        decide(site, "x")
        query = "SELECT pg_current_wal_lsn() < pg_current_wal_insert_lsn()"
        assert site.primary.run_sql(query) == [(True,)], "the note is not even written"
        site.until_in_step()
        facts = auditor.read_site(site.conninfo(), site.standby.conninfo(DATABASE))
        assert facts.standby_digests == facts.digests
    finally:
        site.remove()
