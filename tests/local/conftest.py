"""What the local engine's tests share: a tiny model that the real runtime loads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.local.tiny_gguf import write_tiny_gguf


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")
