"""What the documentation shows happens: its code runs and prints what the pages say."""

import functools
import re
import shlex
import subprocess
import sys
from types import ModuleType
from unittest.mock import patch

import pytest
from support import doc_pages
from support.needs import needs

import sopr_fast
from sopr_fast import formats
from sopr_fast.cli import main as cli
from sopr_fast.inputs.logs import sources

pytestmark = pytest.mark.docs

ROOT = doc_pages.ROOT


@pytest.mark.parametrize("page", doc_pages.pages(), ids=lambda page: str(page.relative_to(ROOT / "docs")))
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    for module in doc_pages.needs(page):
        needs(module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    with patch.dict(formats.POLICIES), patch.dict(sources.READERS):
        results = doc_pages.run(page)
    for name in ("reach", "reach_env"):
        sys.modules.pop(name, None)
    for block, expected, printed in results:
        place = f"{page.relative_to(ROOT)}:{block.line + 1}"
        assert doc_pages.agrees(expected, printed), f"{place} printed\n{printed}"


@pytest.mark.parametrize("notebook", sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs(notebook, tmp_path):
    nbclient, nbformat = needs("nbclient", "make docs"), needs("nbformat", "make docs")
    cells = nbformat.read(notebook, as_version=4)
    assert not any(cell.get("outputs") for cell in cells.cells), "outputs are not committed"
    nbclient.NotebookClient(cells, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in cells.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert any("text/html" in output.get("data", {}) for output in outputs)


BARE = re.compile(r"^```\n((?:python|make|pip|sopr-fast) .*?)^```$", re.MULTILINE | re.DOTALL)
OTHERS = "README.md", "CONTRIBUTING.md", "bench/README.md", "bench/paper/README.md", "bench/selection/README.md"
OTHER_PAGES = [ROOT / name for name in OTHERS]


@pytest.mark.parametrize("page", [*OTHER_PAGES, *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda page: page.stem)
def test_commands_that_are_not_run_and_paths_name_what_exists(page):
    paths = re.findall(r"`(?:pytest )?((?:python_tests|bench|csrc|sopr_fast|docs)/[\w/.]+)`", page.read_text())
    assert [path for path in paths if not (ROOT / path).exists()] == []
    for text in BARE.findall(page.read_text()):
        for line in filter(None, (shlex.split(line, comments=True) for line in text.splitlines())):
            if line[0] == "sopr-fast":
                cli.make_parser().parse_args(line[1:])
            else:
                doc_pages._check_words(line)


@pytest.mark.parametrize("workflow", sorted((ROOT / ".github" / "workflows").iterdir()), ids=lambda path: path.stem)
def test_workflows_run_what_exists(workflow):
    runs = re.findall(r"^ *- run: (.*)$", workflow.read_text(), re.MULTILINE)
    assert len(runs) == (workflow.stem != "wheels")
    assert all((ROOT / run).is_file() for run in runs)


MODULES = [sopr_fast, sopr_fast.inputs.logs, sopr_fast.estimators, sopr_fast.ops]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_the_reference_has_every_public_name(module):
    pages = (ROOT / "docs" / "reference").glob("*.md")
    paths = [path for page in pages for path in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)]
    shown = [functools.reduce(getattr, path.split(".")[1:], sopr_fast) for path in paths]
    values = {name: getattr(module, name) for name in module.__all__ if name != "__version__"}
    assert [name for name, value in values.items() if value not in shown and not isinstance(value, ModuleType)] == []


def test_every_public_name_is_there_after_import():
    script = "import sopr_fast; print(*(name for name in sopr_fast.__all__ if not hasattr(sopr_fast, name)))"
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "\n"
    script = "import sopr_fast; print(sopr_fast.inputs.returns.load_returns.__name__)"  # which nothing else imports
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "load_returns\n"


def test_every_page_has_a_place_in_the_menu():
    pages = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    there = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert pages == there | {"benchmarks.md", "contributing.md", "changelog.md"}  # docs/hooks/repository.py
