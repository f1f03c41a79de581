"""The import table as an import-linter contract: a line a room, and what that room may import of ours. It
reads the import graph only; nothing of wastegate is imported here."""

from __future__ import annotations

from typing import cast

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output

ANY_PACKAGE = "*"


class Rooms(Contract):
    """Each room imports only the rooms that its line names; a room without a line breaks the contract.

    Options: ``rooms``, lines of ``room: room room …`` (``*`` stands for every package, so for all rooms that
    are not a single file); ``strangers``, rooms whose modules may not import each other. A line may name a
    room that has not been built yet. Only direct imports count: a room is not answerable for what its
    neighbours use.
    """

    type_name = "rooms"

    rooms = fields.ListField(subfield=fields.StringField())
    strangers = fields.ListField(subfield=fields.StringField(), required=False, default=[])

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        root = str(self.session_options["root_packages"][0])
        table = parse_table(cast("list[str]", self.rooms))
        strangers = frozenset(cast("list[str]", self.strangers))
        broken = broken_imports(graph, root, table, strangers)
        return ContractCheck(kept=not broken, metadata={"broken": broken})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for line in check.metadata["broken"]:
            output.print_error(line)
            output.new_line()


def parse_table(lines: list[str]) -> dict[str, frozenset[str]]:
    """``["store: core", …]`` → room → rooms that it may import. ValueError quotes a bad line."""
    table: dict[str, frozenset[str]] = {}
    for line in lines:
        room, colon, allowed = line.partition(":")
        room = room.strip()
        if not colon or not room or room in table:
            raise ValueError(f"rooms: {line!r} is not one new 'room: room room …'")
        table[room] = frozenset(allowed.split())
    for room, names in table.items():
        unknown = names - table.keys() - {ANY_PACKAGE}
        if unknown:
            raise ValueError(f"rooms: the line of {room!r} names {sorted(unknown)}, which have no line of their own")
    return table


def broken_imports(
    graph: ImportGraph, root: str, table: dict[str, frozenset[str]], strangers: frozenset[str]
) -> list[str]:
    """Every import that the table does not allow, as a sentence with module and line number."""
    modules = sorted(module for module in graph.modules if module.startswith(f"{root}."))
    existing = sorted({_room(module) for module in modules})
    packages = {_room(module) for module in modules if module.count(".") > 1}
    broken = [f"{root}.{room} has no line in the table of rooms: add one" for room in existing if room not in table]
    for importer in modules:
        room = _room(importer)
        if room not in table:
            continue
        allowed = {room} | table[room] | (packages if ANY_PACKAGE in table[room] else set())
        for imported in sorted(graph.find_modules_directly_imported_by(importer)):
            if not imported.startswith(f"{root}."):
                continue
            other = _room(imported)
            if other not in allowed:
                broken.append(_sentence(graph, importer, imported, f"{room} may not import {other}"))
            elif room == other and room in strangers and importer != f"{root}.{room}":
                broken.append(_sentence(graph, importer, imported, f"no module of {room} imports another"))
    return broken


def _room(module: str) -> str:
    return module.split(".")[1]


def _sentence(graph: ImportGraph, importer: str, imported: str, why: str) -> str:
    details = graph.get_import_details(importer=importer, imported=imported)
    lines = ", ".join(str(detail["line_number"]) for detail in details)
    return f"{importer} imports {imported} (line {lines}): {why}"
