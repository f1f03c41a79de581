"""One gateway with two local replicas for all live tests that only use it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.live.local_gateway import LocalGateway, local_gateway


@pytest.fixture(scope="session")
def two_replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalGateway]:
    with local_gateway(tmp_path_factory.mktemp("two")) as gateway:
        yield gateway
