"""Two private clusters, in which every page gets databases of its own."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pgmip.testing import Cluster, extension_installed, find_bindir

SITES = ("store", "bank")
_numbers = itertools.count()


@pytest.fixture(scope="session")
def clusters() -> Iterator[dict[str, Cluster]]:
    if not os.environ.get("PGMIP_REQUIRE_INTEGRATION") and (os.geteuid() == 0 or not extension_installed()):
        pytest.skip("needs an ordinary user and the extension pg_mip")
    # What a page leaves in doubt for a moment must not be found old on a slow machine.
    made = {site: Cluster(site, settings={"mip.site_name": site, "mip.push_after": "1h"}) for site in SITES}
    try:
        for cluster in made.values():
            cluster.start()
        yield made
    finally:
        for cluster in made.values():
            cluster.remove()


@pytest.fixture
def services(clusters: dict[str, Cluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """`service=store` and `service=bank` are new databases. Their connection strings."""
    name = f"page_{next(_numbers)}"
    conninfos = {}
    lines = []
    for site, cluster in clusters.items():
        cluster.create_database(name)
        conninfos[site] = cluster.conninfo(name)
        lines += [f"[{site}]", *conninfos[site].split(" "), ""]
    service_file = tmp_path / "pg_service.conf"
    service_file.write_text("\n".join(lines))
    monkeypatch.setenv("PGSERVICEFILE", str(service_file))
    monkeypatch.setenv("PGMIP_SITES", "store=service=store;bank=service=bank")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PATH", f"{find_bindir()}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.syspath_prepend(tmp_path)  # for the files that a page shows
    for module in ("shop", "server"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.chdir(tmp_path)
    return conninfos
