"""The package as a house: modules import each other in one direction, rooms stand on floors, names are told apart."""

import ast
import re
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import sopr_fast

ROOT = Path(sopr_fast.__file__).parent
FLOORS = 11


def modules() -> dict[str, Path]:
    """Return the file of every module by name, that of compiled ones is a stub; packages are named like these."""
    files = [*ROOT.rglob("*.py"), *ROOT.rglob("*.pyi")]
    paths = {path: path.relative_to(ROOT.parent).with_suffix("").parts for path in files}
    return {".".join(parts[:-1] if parts[-1] == "__init__" else parts): path for path, parts in paths.items()}


def imports() -> dict[str, set[str]]:
    """Return what each module imports of the package, inside of functions and for type checks too."""
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
                    graph[name].add(next(one for one in names if one in files))
        graph[name].discard(name)
    return graph


def room(module: str) -> str:
    """Return the folder of a module; the list of formats, which names their functions as text, stands below them."""
    parts = module.split(".")[1:]
    if parts[0] in ("formats", "inputs"):
        return ".".join(parts[:2]) if len(parts) == 1 or (ROOT / parts[0] / parts[1]).is_dir() else parts[0] + ".*"
    return parts[0]


def test_no_module_imports_itself_through_others():
    graph = imports()
    assert len(graph) > 100
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules


def test_rooms_stand_on_floors():
    doors = {"sopr_fast", "sopr_fast.__main__"}
    graph: dict[str, set[str]] = {}
    for name, others in imports().items():
        if name not in doors:
            graph.setdefault(room(name), set()).update({room(other) for other in others} - {room(name)})
    floors: dict[str, int] = {}
    for name in TopologicalSorter(graph).static_order():  # raises CycleError, which names the rooms
        floors[name] = 1 + max((floors[below] for below in graph.get(name, ())), default=0)
    assert max(floors.values()) <= FLOORS, floors


def test_no_module_and_no_class_is_named_twice():
    files = [path for path in modules().values() if path.name != "__init__.py"]
    classes = [
        node.name
        for path in files
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    ]
    for names in ([path.name for path in files], classes):
        assert [name for name, count in Counter(names).items() if count > 1] == []


def test_no_test_imports_a_test():
    """What tests share lives in support/."""
    for path in Path(__file__).parent.rglob("*.py"):
        assert not re.search(r"^\s*(from|import) .*\btest_", path.read_text(encoding="utf-8"), re.MULTILINE), path


def test_containers_are_opened_through_one_door():
    """What a file says that it holds is checked there before it is inflated."""
    door = ROOT / "runtime" / "containers.py"
    opened = re.compile(
        r"\bzipfile\b|\bzlib\b|\bgzip\b|\bh5py\.File|np\.load\(|pyarrow\.parquet|ParquetFile|pandas\.read_(parquet|json)"
        r"|\bfrom_parquet|format\.read_array\b|format\.open_memmap"
    )
    others = [path for path in ROOT.rglob("*.py") if path != door and opened.search(path.read_text(encoding="utf-8"))]
    assert opened.search(door.read_text(encoding="utf-8")) and others == []
    readers = [path for room in ("formats", "inputs") for path in (ROOT / room).rglob("*.py")]
    assert [path for path in readers if "json.load" in path.read_text(encoding="utf-8")] == []
