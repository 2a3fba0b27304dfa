from __future__ import annotations

from collections.abc import Iterator

import pytest
from pgmip.testing import Cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with Cluster("workload", settings={"autovacuum": "off"}) as made:
        yield made
