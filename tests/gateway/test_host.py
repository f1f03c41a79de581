"""Processes of this machine, as /proc tells of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from wastegate.gateway.host import read

BUSY = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "x = bytearray(30_000_000); print('up', flush=True); input()"],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
total = sum(i * i for i in range(3_000_000))
print("up", flush=True)
input()
child.communicate(b"\\n")
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="this machine has no /proc")
def test_a_process_with_what_it_has_started() -> None:
    parent = subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"up\n"
        host = read(parent.pid)
        assert host is not None
        assert host.processes == 2
        assert host.rss_bytes > 30_000_000
        assert host.cpu_seconds > 0.05
    finally:
        parent.communicate(b"\n", timeout=20)
    assert read(parent.pid) is None


def test_a_name_with_blanks_and_parentheses_misleads_nobody(tmp_path: Path) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    (tmp_path / "7" / "task" / "7").mkdir(parents=True)
    fields = ["S", *"0000000000", str(2 * ticks), str(ticks), *"00000000", "100"]
    (tmp_path / "7" / "stat").write_text("7 (a) b (c) " + " ".join(fields))
    (tmp_path / "7" / "task" / "7" / "children").write_text("8 9 ")
    (tmp_path / "9").mkdir()
    (tmp_path / "9" / "stat").write_text("9 (short) S")
    host = read(7, tmp_path)
    assert host is not None
    assert (host.cpu_seconds, host.processes) == (3.0, 1)
    assert host.rss_bytes == 100 * os.sysconf("SC_PAGE_SIZE")


def test_where_there_is_no_proc_nothing_is_known(tmp_path: Path) -> None:
    assert read(1, tmp_path / "none") is None
