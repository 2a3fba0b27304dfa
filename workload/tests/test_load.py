"""Loading can be interrupted, and what is there is looked at first."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from pgmip.testing import Cluster

from workload.load import load
from workload.population import SIZES, TABLES

TINY = SIZES["tiny"]


def sums(cluster: Cluster, database: str) -> dict[str, object]:
    """A checksum of each table."""
    return {
        table: cluster.run_sql(f"SELECT sum(hashtextextended(t::text, 0)) FROM {table} t", dbname=database)
        for table in TABLES
    }


@pytest.fixture(scope="module")
def whole(cluster: Cluster) -> dict[str, object]:
    cluster.create_database("whole")
    load(cluster.conninfo("whole"), TINY, quiet=True)
    return sums(cluster, "whole")


def test_an_interrupted_load_goes_on(cluster: Cluster, whole: dict[str, object]) -> None:
    cluster.create_database("broken")
    command = [sys.executable, "-m", "workload.load", cluster.conninfo("broken"), "--size", "tiny", "--workers", "1"]
    loading = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while not cluster.run_sql("SELECT to_regclass('loaded_part')", dbname="broken")[0][0]:
        time.sleep(0.01)
    while not cluster.run_sql("SELECT FROM loaded_part", dbname="broken"):
        time.sleep(0.001)
    loading.kill()
    loading.wait()
    cluster.restart("immediate")
    load(cluster.conninfo("broken"), TINY, quiet=True)
    assert sums(cluster, "broken") == whole


def test_what_is_loaded_is_not_loaded_again(cluster: Cluster, whole: dict[str, object]) -> None:
    load(cluster.conninfo("whole"), TINY, quiet=True)
    assert sums(cluster, "whole") == whole


def test_another_population_is_refused(cluster: Cluster, whole: dict[str, object]) -> None:
    with pytest.raises(SystemExit, match="another population"):
        load(cluster.conninfo("whole"), TINY, seed=2, quiet=True)
