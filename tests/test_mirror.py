"""Each module has its test file at the same place, and each test file has its module."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

SUPPORT = frozenset(
    {
        "certificates.py",
        "collector.py",
        "conftest.py",
        "fake_replica.py",
        "fake_replies.py",
        "gateway_process.py",
        "ledgers.py",
        "pages.py",
        "plant.py",
        "playbook.py",
        "redis_server.py",
        "rooms.py",
        "running.py",
        "running_engine.py",
        "tiny_gguf.py",
        "vllm_like.py",
    }
)
"""What tests share. Anything else under tests/ is a test."""
FREE = frozenset({"faults", "live"})
"""Folders under tests/ that mirror nothing: they show what the whole does, with failing and with real engines."""


def mirror_problems(package: Path, tests: Path) -> list[str]:
    """One sentence for each module without its tests, and for each test file without its module."""
    modules = {path.relative_to(package) for path in package.rglob("*.py") if _has_logic(path)}
    files = {path.relative_to(tests) for path in tests.rglob("*.py") if path.parent.name not in FREE}
    problems = [
        f"{package.name}/{module} has no tests/{_test_of(module)}"
        for module in sorted(modules)
        if _test_of(module) not in files
    ]
    for file in sorted(files):
        if file.name in SUPPORT or (file.parent == Path() and file.name.startswith("test_")):
            continue
        if not file.name.startswith("test_"):
            problems.append(f"tests/{file} is neither a test nor listed as shared by tests (SUPPORT)")
        elif not (package / file.parent / file.name.removeprefix("test_")).exists():
            problems.append(f"tests/{file} tests no module: there is no {package.name}/{_module_of(file)}")
    return problems


def _test_of(module: Path) -> Path:
    return module.parent / f"test_{module.name}"


def _module_of(file: Path) -> Path:
    return file.parent / file.name.removeprefix("test_")


def _has_logic(path: Path) -> bool:
    """Only ``__init__`` and ``__main__`` may go without a test, and only while they define nothing."""
    if path.name not in ("__init__.py", "__main__.py"):
        return True
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) for node in nodes)


def test_tests_mirror_the_source() -> None:
    assert mirror_problems(ROOT / "src/wastegate", ROOT / "tests") == []


def lay(root: Path, **files: str) -> None:
    """Write files; ``__`` in a name stands for a folder, so that they can be keywords."""
    for name, text in files.items():
        path = root / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A small tree that is as it should be."""
    lay(tmp_path, src__core__call="x = 1", src__cli="x = 1")
    lay(tmp_path, tests__core__test_call="", tests__test_cli="", tests__test_parity="", tests__live__test_all="")
    (tmp_path / "src/core/__init__.py").write_text('"""Only words."""\nLEVERS = ()\n')
    (tmp_path / "tests/playbook.py").write_text("")
    return tmp_path


def problems(house: Path) -> list[str]:
    return mirror_problems(house / "src", house / "tests")


def test_a_whole_tree_has_no_problem(house: Path) -> None:
    assert problems(house) == []


def test_a_module_without_tests_is_named(house: Path) -> None:
    lay(house, src__core__plan="x = 1")
    assert problems(house) == ["src/core/plan.py has no tests/core/test_plan.py"]


def test_a_module_at_the_top_needs_its_tests_too(house: Path) -> None:
    (house / "tests/test_cli.py").unlink()
    assert problems(house) == ["src/cli.py has no tests/test_cli.py"]


def test_a_test_without_its_module_is_named(house: Path) -> None:
    lay(house, tests__core__test_gone="")
    assert problems(house) == ["tests/core/test_gone.py tests no module: there is no src/core/gone.py"]


def test_the_right_name_in_the_wrong_folder_counts_for_nothing(house: Path) -> None:
    (house / "tests/store").mkdir()
    (house / "tests/core/test_call.py").rename(house / "tests/store/test_call.py")
    assert problems(house) == [
        "src/core/call.py has no tests/core/test_call.py",
        "tests/store/test_call.py tests no module: there is no src/store/call.py",
    ]


def test_an_init_with_logic_in_it_needs_tests(house: Path) -> None:
    (house / "src/core/__init__.py").write_text("def helper() -> None: ...\n")
    assert problems(house) == ["src/core/__init__.py has no tests/core/test___init__.py"]


def test_a_file_that_is_no_test_must_be_listed(house: Path) -> None:
    lay(house, tests__core__stuff="")
    assert problems(house) == ["tests/core/stuff.py is neither a test nor listed as shared by tests (SUPPORT)"]
