"""Modules of the package import each other in one direction."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import sopr_fast

ROOT = Path(sopr_fast.__file__).parent


def modules() -> dict[str, Path]:
    """Return the file of every module by name; those of packages are named like these."""
    paths = {path: path.relative_to(ROOT.parent).with_suffix("").parts for path in ROOT.rglob("*.py")}
    return {".".join(parts[:-1] if parts[-1] == "__init__" else parts): path for path, parts in paths.items()}


def imports() -> dict[str, set[str]]:
    """Return which modules each module imports: those inside of functions and for type checks count."""
    files = modules()
    graph: dict[str, set[str]] = {}
    for name, path in files.items():
        base = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        graph[name] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level:
                source = [*base[: len(base) - node.level + 1], *([node.module] if node.module else [])]
                for alias in node.names:
                    names = (".".join([*source, alias.name]), ".".join(source))
                    graph[name].add(next((one for one in names if one in files), name))
    return graph


def test_no_module_imports_itself_through_others():
    """The root, which only lists names, does not count."""
    graph = {name: others - {name, "sopr_fast"} for name, others in imports().items() if name != "sopr_fast"}
    assert len(graph) > 100
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules


def test_a_format_can_be_deleted_alone():
    """No module imports a format, which the registry names, but for the parts of its own program and what all share."""

    def program(name: str) -> str:
        return name.split(".")[2] if name.startswith("sopr_fast.formats.") else ""

    graph = imports()
    assert {program(name) for name in graph} >= {"state_dicts", "programs", "d3rlpy", "stable_baselines3", "shared"}
    foreign = {(name, other) for name, others in graph.items() for other in others if program(name) != program(other)}
    assert not [pair for pair in foreign if program(pair[1]) not in ("", "shared")]


def test_no_test_imports_a_test():
    """What tests share lives in support/."""
    for path in Path(__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [
                alias.name for alias in getattr(node, "names", []) if isinstance(node, ast.Import | ast.ImportFrom)
            ]
            assert not [name for name in names if name.split(".")[-1].startswith("test_")], path
