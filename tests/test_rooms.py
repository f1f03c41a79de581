"""The import contract is kept, and it breaks when an import crosses a wall."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from grimp import ImportGraph, build_graph

from tests.rooms import broken_imports, parse_table

ROOT = Path(__file__).parent.parent
OPTIONS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
ROOMS, PURE = OPTIONS["contracts"]
TABLE = parse_table(ROOMS["rooms"])


@pytest.fixture(scope="module")
def graph() -> ImportGraph:
    return build_graph("wastegate", include_external_packages=True, cache_dir=None)


def test_every_import_is_allowed(graph: ImportGraph) -> None:
    assert broken_imports(graph, "wastegate", TABLE, frozenset(ROOMS["strangers"])) == []


def test_the_pure_contract_covers_every_pure_room_that_exists(graph: ImportGraph) -> None:
    pure = {f"wastegate.{room}" for room in ("core", "openai", "levers")} & graph.modules
    missing = pure - set(PURE["source_modules"])
    assert not missing, f"add {sorted(missing)} to source_modules of {PURE['name']!r} in pyproject.toml"


def test_the_table_in_the_docs_says_the_same(graph: ImportGraph) -> None:
    text = (ROOT / "docs/structure.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|$", text, flags=re.M)
    written = {room: frozenset(re.findall(r"`([\w*]+)`", allowed)) for room, allowed, _ in rows if room in TABLE}
    assert written == {room: allowed for room, allowed in TABLE.items() if room != "__main__"}
    unbuilt = {room for room, _, holds in rows if holds.startswith("Not built yet.")}
    built = {room for room in written if f"wastegate.{room}" in graph.modules}
    assert unbuilt == written.keys() - built, "a row of docs/structure.md is wrong about what exists"


def made_up(*imports: tuple[str, str]) -> ImportGraph:
    graph = ImportGraph()
    for module in ("p.core", "p.core.a", "p.levers", "p.levers.x", "p.levers.y", "p.site", "p.cli"):
        graph.add_module(module)
    for importer, imported in imports:
        graph.add_import(importer=importer, imported=imported, line_number=7, line_contents="import it")
    return graph


MADE_UP = parse_table(["core:", "levers: core", "site: *", "cli: * site"])


@pytest.mark.parametrize(
    "allowed",
    [
        ("p.levers.x", "p.core.a"),
        ("p.levers", "p.levers.x"),
        ("p.core.a", "p.core"),
        ("p.core.a", "p"),
        ("p.core.a", "numpy"),
        ("p.site", "p.levers.x"),
        ("p.cli", "p.site"),
        ("p.cli", "p.core"),
    ],
)
def test_an_allowed_import_passes(allowed: tuple[str, str]) -> None:
    assert broken_imports(made_up(allowed), "p", MADE_UP, frozenset({"levers"})) == []


@pytest.mark.parametrize(
    ("forbidden", "why"),
    [
        (("p.core.a", "p.levers.x"), "core may not import levers"),
        (("p.levers.x", "p.levers.y"), "no module of levers imports another"),
        (("p.core", "p.site"), "core may not import site"),
        (("p.site", "p.cli"), "site may not import cli"),
    ],
)
def test_a_forbidden_import_is_named_with_its_line(forbidden: tuple[str, str], why: str) -> None:
    (sentence,) = broken_imports(made_up(forbidden), "p", MADE_UP, frozenset({"levers"}))
    assert sentence == f"{forbidden[0]} imports {forbidden[1]} (line 7): {why}"


def test_a_room_without_a_line_is_named() -> None:
    graph = made_up(("p.attic.a", "p.core"))
    assert broken_imports(graph, "p", MADE_UP, frozenset()) == ["p.attic has no line in the table of rooms: add one"]


@pytest.mark.parametrize("line", ["core", ": core", "a:", "b: nowhere"])
def test_a_line_that_makes_no_sense_is_quoted(line: str) -> None:
    with pytest.raises(ValueError, match=re.escape(line.split(":")[0].strip() or line)):
        parse_table(["a:", line])
