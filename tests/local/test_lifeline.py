from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator

import pytest

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
print(child.stdout.readline().decode().strip(), flush=True)
sys.stdin.read()
"""
CHILD = """
import os, sys
sys.stdin.close()
from wastegate.local.lifeline import die_with_parent
die_with_parent()
print(os.getpid(), flush=True)
import signal; signal.pause()
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel does this on Linux only")


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.kill()


def test_the_child_of_a_killed_parent_is_killed(parent: subprocess.Popen[str]) -> None:
    assert parent.stdout is not None
    child = os.pidfd_open(int(parent.stdout.readline()))
    try:
        assert select.select([child], [], [], 0)[0] == [], "it ended before its parent"
        parent.kill()
        assert select.select([child], [], [], 10)[0] == [child], "it outlived its parent"
    finally:
        os.close(child)
