"""The audit's page in a real browser, cut off from every network: its charts are drawn, and it asks for nothing."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.ledgers import PLAIN, attempt, entry, span
from wastegate import cli
from wastegate.store.entries import Ledger

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian: apt-get install chromium)"),
]
T = 1_790_000_000.0
EVIL = "<img src='http://127.0.0.1:9/x.png' onerror='document.title=1'><script>document.title='owned'</script>"

BOXES = """(() => {
  const seen = [...document.querySelectorAll('figure')].map(figure => {
    const svgs = [...figure.querySelectorAll(':scope > svg')];
    const marks = svgs.flatMap(svg => [...svg.querySelectorAll('rect:not(.track), circle')]);
    const boxes = marks.map(mark => mark.getBoundingClientRect());
    const filled = marks.every(mark => getComputedStyle(mark).fill !== 'rgb(0, 0, 0)');
    const words = svgs.flatMap(svg => [...svg.querySelectorAll('text')].map(text => text.getBoundingClientRect()));
    const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
    const clash = words.some((a, i) => words.slice(i + 1).some(b => meet(a, b)));
    return {title: figure.querySelector('figcaption').textContent, marks: marks.length, filled, clash,
            drawn: boxes.filter(box => box.width > 0 && box.height > 0).length};
  });
  return {figures: seen, title: document.title, scripts: document.scripts.length, images: document.images.length,
          over: document.documentElement.scrollWidth - innerWidth,
          ground: getComputedStyle(document.body).backgroundColor};
})()"""


class Browser:
    """Chromium's own debugging protocol over its WebSocket: commands out, answers and events in."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._count = 0
        self.events: list[dict[str, Any]] = []

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        await self._socket.send_json({"id": self._count, "method": method, "params": params})
        while True:
            message = await self._next()
            if message.get("id") == self._count:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result

    async def until(self, event: str) -> None:
        while not any(seen["method"] == event for seen in self.events):
            await self._next()

    async def _next(self) -> dict[str, Any]:
        message: dict[str, Any] = await self._socket.receive_json(timeout=20)
        if "method" in message:
            self.events.append(message)
        return message


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            CHROMIUM,
            *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-port=0"),
            *("--proxy-server=127.0.0.1:9", f"--user-data-dir={profile}", "about:blank"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            assert process.stderr is not None
            async with asyncio.timeout(60):
                while b"DevTools listening on" not in (line := await process.stderr.readline()):
                    assert line, "Chromium ended before it listened"
            port = line.split(b"127.0.0.1:")[1].split(b"/")[0].decode()
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    target = next(item for item in await answer.json() if item["type"] == "page")
                async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    yield Browser(socket)
        finally:
            process.kill()
            await process.wait()


def page_of(folder: Path) -> Path:
    """A busy little ledger with labels that want out, audited."""
    with Ledger(folder / "ledger.db") as ledger:
        ledger.add(
            [
                entry(
                    f"c{n}",
                    attempt(
                        *("a" if n % 3 else "a-replica-with-a-name-longer-than-a-phone-is-wide", T + n, T + n + 3),
                        first_token=T + n + 1,
                        prompt_tokens=50 + n,
                        output_tokens=5 + n,
                        outcome="failed" if n % 7 == 0 else "finished",
                    ),
                    tenant=EVIL if n % 4 == 0 else f"tenant-with-a-rather-long-name-of-its-own-{n % 4}",
                    tags=(("team", EVIL),),
                )
                for n in range(60)
            ]
        )
        life = [span("a", T, T + 70, work=PLAIN), span("a-replica-with-a-name-longer-than-a-phone-is-wide", T, T + 90)]
        ledger.save_spans(life)
    page = folder / "audit.html"
    assert cli.main(["audit", "--ledger", str(folder / "ledger.db"), "--html", str(page), "--json"]) == 0
    return page


async def look(page: Path, width: int, scheme: str) -> dict[str, Any]:
    async with chromium() as browser:
        for domain in ("Network", "Page", "Log"):
            await browser.call(f"{domain}.enable")
        await browser.call(
            "Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0
        )
        media = [{"name": "prefers-color-scheme", "value": scheme}]
        await browser.call("Emulation.setEmulatedMedia", features=media)
        await browser.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 500
        )
        await browser.call("Page.navigate", url=page.as_uri())
        await browser.until("Page.loadEventFired")
        answer = await browser.call("Runtime.evaluate", expression=BOXES, returnByValue=True)
        found: dict[str, Any] = answer["result"]["value"]
        sent = [
            event["params"]["request"]["url"]
            for event in browser.events
            if event["method"] == "Network.requestWillBeSent"
        ]
        said = [event["params"]["entry"]["text"] for event in browser.events if event["method"] == "Log.entryAdded"]
        return {**found, "requests": sent, "log": said}


@pytest.mark.parametrize(
    ("width", "scheme", "ground"), [(1200, "light", "rgb(252, 252, 251)"), (360, "dark", "rgb(13, 13, 13)")]
)
async def test_charts_are_drawn_and_nothing_is_requested(tmp_path: Path, width: int, scheme: str, ground: str) -> None:
    page = page_of(tmp_path)
    found = await look(page, width, scheme)
    assert found["requests"] == [page.as_uri()]
    assert found["log"] == []
    assert (found["scripts"], found["images"]) == (0, 0)
    assert found["title"] == f"Audit of {tmp_path / 'ledger.db'}"
    assert found["ground"] == ground
    assert found["over"] <= 0, "the page is wider than the screen"
    assert len(found["figures"]) == 12
    for figure in found["figures"]:
        assert figure["marks"] == figure["drawn"] > 0, figure
        assert figure["filled"], f"{figure['title']}: a mark has no colour"
        assert not figure["clash"], f"{figure['title']}: words lie upon each other at {width} px"
