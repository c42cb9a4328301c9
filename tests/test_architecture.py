"""The house, checked from the code itself: imports, lengths, banned words."""

from __future__ import annotations

import ast
import gc
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "evoclaw"

FLOORS = {
    "core": 0,
    "providers": 1,
    "tools": 1,
    "skills": 1,
    "executors": 1,
    "governance": 1,
    "sandbox": 1,
    "shell": 1,
    "trust": 1,
    "transport": 1,
    "store": 1,
    "observe": 1,
    "orchestrator": 2,
    "edge": 2,
    "workflows": 2,
    "evolution": 2,
    "api": 3,
    "cli": 3,
    "dashboard": 3,
}
ROOF = {"__init__", "__main__", "config", "verify", "wiring"}
BRIDGES = {
    ("executors.edge", "transport"),
    ("governance", "shell"),
    ("observe.audit.checkpoints", "trust"),
    ("sandbox", "executors"),
}
"""The only imports between rooms of floor 1: a module or a room, and the room that it imports."""

SHOWN_BY_API = {"governance", "observe", "skills", "trust"}
"""The rooms of floor 1 whose classes the API may use; stores, executors and vendors stay behind
the orchestrator."""

BANNED_WORDS = {"utils", "helpers", "common", "misc"}
BROAD_EXCEPT = {
    "api/mcp/endpoint.py",
    "core/run.py",
    "core/calls.py",
    "core/replies.py",
    "edge/commands.py",
    "executors/own_tool_worker.py",
    "executors/own_tools.py",
    "orchestrator/runs/driver.py",
    "transport/connection.py",
    "wiring/packages.py",
}
"""Where a fault of others' code is turned into a fact; nowhere else is everything caught."""
MAX_LOOP_LINES, MAX_ROOT_LINES = 250, 90


@dataclass(frozen=True)
class Module:
    path: Path

    @property
    def name(self) -> str:
        return ".".join(self.path.relative_to(SOURCE).with_suffix("").parts)

    @property
    def room(self) -> str:
        return self.name.split(".")[0]

    @property
    def short(self) -> str:
        return self.path.relative_to(SOURCE).as_posix()


@pytest.fixture(autouse=True, scope="module")
def _forgotten() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """Look for no garbage among a million nodes, and do not keep them for other tests."""
    gc.disable()
    yield
    gc.enable()
    tree.cache_clear()
    nodes.cache_clear()


@cache
def modules() -> tuple[Module, ...]:
    return tuple(Module(path) for path in sorted(SOURCE.rglob("*.py")))


@cache
def tree(module: Module) -> ast.Module:
    return ast.parse(module.path.read_text())


@cache
def nodes(module: Module) -> tuple[ast.AST, ...]:
    """All that is in it: half of what these tests take is to go there."""
    return tuple(ast.walk(tree(module)))


def imports(module: Module) -> Iterator[tuple[str, int]]:
    """Every import, also those inside functions and for type checking."""
    for node in nodes(module):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module.short}:{node.lineno}: relative import"
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node.lineno


def own_imports(module: Module) -> Iterator[tuple[str, int]]:
    for target, line in imports(module):
        if target.startswith("evoclaw."):
            yield target.removeprefix("evoclaw."), line


def test_every_module_is_in_a_known_package() -> None:
    assert {m.room for m in modules()} <= FLOORS.keys() | ROOF


def may_import(module: Module, target: str) -> bool:
    room = target.split(".")[0]
    if module.room in ROOF or room == module.room:
        return True
    if (module.room, room) == ("cli", "wiring"):
        return True  # a command builds what it needs, when it is typed
    if room in ROOF or room not in FLOORS:
        return False
    if (module.name, room) in BRIDGES or (module.room, room) in BRIDGES:
        return True
    if module.room in ("api", "dashboard"):
        shown = SHOWN_BY_API if module.room == "api" else set[str]()
        return room == "core" or room in shown or FLOORS[room] == 2
    return FLOORS[room] < FLOORS[module.room]


def test_imports_go_only_to_lower_layers() -> None:
    wrong = [
        f"{module.short}:{line} imports evoclaw.{target}"
        for module in modules()
        for target, line in own_imports(module)
        if not may_import(module, target)
    ]
    assert not wrong, "\n".join(wrong)


def test_there_are_no_import_cycles() -> None:
    names = {module.name: module for module in modules()}

    def targets(module: Module) -> set[str]:
        found = {target for target, _ in own_imports(module)}
        return {n for t in found for n in (t, t.rpartition(".")[0]) if n in names} - {module.name}

    graph = {name: targets(module) for name, module in names.items()}
    while free := [name for name, needs in graph.items() if not needs & graph.keys()]:
        for name in free:
            del graph[name]
    assert not graph, f"in or behind a circle: {sorted(graph)}"


def test_the_import_rule_rejects_forbidden_imports() -> None:
    def allowed(path: str, target: str) -> bool:
        return may_import(Module(SOURCE / path), target)

    assert not allowed("core/loop.py", "providers.openai")
    assert not allowed("tools/files.py", "executors.local")
    assert allowed("cli/run.py", "wiring.local")
    assert not allowed("cli/run.py", "config")
    assert not allowed("api/app.py", "wiring.http")
    assert not allowed("api/app.py", "store.recordings")
    assert not allowed("api/app.py", "executors.canvases")
    assert allowed("api/app.py", "governance.stops")
    assert not allowed("dashboard/static_files.py", "governance.stops")
    assert not allowed("workflows/driver.py", "orchestrator.runs.runs")
    assert allowed("executors/edge.py", "transport.link")
    assert not allowed("executors/local.py", "transport.link")
    assert allowed("sandbox/sandboxes.py", "executors.processes")
    assert not allowed("executors/processes.py", "sandbox.sandbox")
    assert not allowed("shell/words.py", "governance.rules")
    assert allowed("cli/run.py", "orchestrator.prompt")
    assert allowed("wiring.py", "cli.main")


def test_core_imports_only_the_standard_library_and_two_packages() -> None:
    wrong = [
        f"{module.short}:{line} imports {target}"
        for module in modules()
        if module.room == "core"
        for target, line in imports(module)
        if target.split(".")[0] in ("aiohttp", "re2", "rich", "socket", "subprocess", "sqlite3")
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("name", "limit"), [("core/loop.py", MAX_LOOP_LINES), ("__init__.py", MAX_ROOT_LINES)]
)
def test_the_loop_and_the_package_init_stay_short(name: str, limit: int) -> None:
    assert len((SOURCE / name).read_text().splitlines()) <= limit


def test_banned_names_are_not_used_for_modules_classes_or_functions() -> None:
    def words(name: str) -> set[str]:
        return set(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_"))

    wrong: list[str] = []
    for module in modules():
        names = [module.path.stem] + [
            node.name
            for node in nodes(module)
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        wrong += [
            f"{module.short}: {name}"
            for name in names
            if words(name) & BANNED_WORDS or name.startswith("Abstract") or name.endswith("Impl")
        ]
    assert not wrong, "\n".join(wrong)


def test_broad_except_is_used_only_at_port_boundaries() -> None:
    wrong = [
        f"{module.short}:{node.lineno}"
        for module in modules()
        if module.short not in BROAD_EXCEPT
        for node in nodes(module)
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or (isinstance(node.type, ast.Name) and node.type.id == "Exception"))
    ]
    assert not wrong, "\n".join(wrong)


def test_every_module_has_a_docstring() -> None:
    wrong = [m.short for m in modules() if not (ast.get_docstring(tree(m)) or "").strip()]
    assert not wrong, "\n".join(wrong)


def _runs_something(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr):
        return not isinstance(node.value, ast.Constant)
    return isinstance(node, ast.For | ast.While | ast.With | ast.AsyncFor | ast.AsyncWith)


def test_modules_run_no_code_on_import() -> None:
    wrong = [
        f"{module.short}:{node.lineno}"
        for module in modules()
        for node in tree(module).body
        if _runs_something(node)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("vendor", ["openai", "anthropic", "ollama"])
def test_no_vendor_package_is_imported(vendor: str) -> None:
    wrong = [
        f"{module.short}:{line}"
        for module in modules()
        for target, line in imports(module)
        if target.split(".")[0] == vendor
    ]
    assert not wrong, "\n".join(wrong)


BARE_LIMIT_NAMES = {
    *("MOST", "LONGEST", "DEEPEST", "LARGEST", "SMALL", "PATIENCE", "AGAIN", "SILENCE", "LOOK"),
    *("LINGER", "AT_ONCE", "KEPT", "EVERY", "SELDOM", "PAUSE", "TRIES"),
}
"""Constants that name neither what they limit nor the unit."""


def test_every_class_name_is_used_once() -> None:
    homes: dict[str, list[str]] = {}
    for module in modules():
        for node in nodes(module):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(module.short)
    shared = {name: where for name, where in homes.items() if len(where) > 1}
    assert not shared


def test_constants_name_what_they_limit() -> None:
    bare = [
        f"{module.short}: {target.id}"
        for module in modules()
        for node in tree(module).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id.lstrip("_") in BARE_LIMIT_NAMES
    ]
    assert not bare, "\n".join(bare)


def test_docs_and_docstrings_name_only_modules_that_exist() -> None:
    rooms = "|".join(sorted({*FLOORS, "config", "wiring"}))
    paths = re.compile(rf"`(?:src/evoclaw/)?((?:{rooms})/[a-z_0-9/]+\.py)\b")
    dotted = re.compile(rf"\bevoclaw\.((?:{rooms})(?:\.[a-z_0-9]+)+)")
    texts = {module.short: module.path.read_text() for module in modules()}
    repository = SOURCE.parent.parent
    for page in (*repository.glob("docs/**/*.md"), repository / "AGENTS.md"):
        texts[page.relative_to(repository).as_posix()] = page.read_text()
    wrong = [
        f"{name}: {found}"
        for name, text in texts.items()
        for found in paths.findall(text)
        if not (SOURCE / found).exists()
    ]
    wrong += [
        f"{name}: evoclaw.{found}"
        for name, text in texts.items()
        for found in dotted.findall(text)
        if not _is_module(found)
    ]
    assert not wrong, "\n".join(wrong)


def _is_module(dotted: str) -> bool:
    """Whether a dotted name is a module, or a name in one."""
    path = SOURCE.joinpath(*dotted.split("."))
    here = path.is_dir() or path.with_suffix(".py").exists()
    return here or path.parent.with_suffix(".py").exists() or (path.parent / "__init__.py").exists()
