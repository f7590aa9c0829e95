"""Run the code of a documentation page, and compare what it prints.

- `python` blocks run in order and share variables. One with a title is a file, written to the working folder.
- `sh` blocks run line by line: `sopr-fast …` and `python …`. Of other commands, which install, build or need several
  machines, only targets of make and files of the repository are checked.
- A `text` block below is what the block above prints. Numbers with a decimal point are not compared, nor is the width
  of columns. Under the title "for example", where results depend on the machine, only the number of lines is.
- A block that prints something needs a `text` block.
- `<!-- needs: MODULE, … -->` names libraries without which the page is skipped, `<!-- block needs: MODULE -->` above a
  block one without which the block is.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(python|sh|text)(?: title=\"(.*?)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A block of a page: its language, title ("" without one), text, and line in the page."""

    language: str
    title: str
    text: str
    line: int


def pages() -> list[Path]:
    return [page for page in sorted((ROOT / "docs").rglob("*.md")) if blocks(page)]


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(match[1], match[2] or "", match[3], text.count("\n", 0, match.start(3)))
        for match in BLOCK.finditer(text)
        if _is_installed(re.search(r"<!-- block needs: (\w+) -->\n$", text[: match.start()]))
    ]


def _is_installed(needed: re.Match[str] | None) -> bool:
    return needed is None or importlib.util.find_spec(needed[1]) is not None


def needs(page: Path) -> list[str]:
    match = re.search(r"^<!-- needs: (.*) -->$", page.read_text(), re.MULTILINE)
    return match[1].split(", ") if match else []


def run(page: Path) -> list[tuple[Block, Block | None, str]]:
    """Run a page in the current folder.

    Returns:
        For each block of code: the block, the `text` block below it if there is one, and what it printed.
    """
    for file in (ROOT / "docs" / "tutorials").glob("*.py"):
        shutil.copy(file, ".")
    variables: dict = {"__name__": "__main__"}
    results, parts = [], blocks(page)
    for block, after in zip(parts, [*parts[1:], None], strict=True):
        if block.language == "text":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            if block.language == "sh":
                _shell(block.text)
            elif block.title:
                Path(block.title).write_text(block.text)
            else:
                # Lines are those of the page, for tracebacks.
                exec(compile("\n" * block.line + block.text, str(page), "exec"), variables)
        expected = after if after is not None and after.language == "text" else None
        results.append((block, expected, printed.getvalue()))
    return results


def _shell(text: str) -> None:
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        if words[0] == "sopr-fast":
            from sopr_fast.cli import main as cli

            assert cli.main(words[1:]) == 0, line
        elif words[0] == "python" and not _is_in_repository(words):
            done = subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{line}\n{done.stderr}"
            print(done.stdout, end="")
        else:
            _check_words(words)


def _is_in_repository(words: list[str]) -> bool:
    """Return whether a command runs something of the repository, or makes an environment: nothing for a test."""
    if words[1] == "-m":
        return words[2] == "venv" or words[2].startswith("bench.")
    return (ROOT / words[1]).is_file()


def _check_words(words: list[str]) -> None:
    while "=" in words[0]:
        words = words[1:]
    if words[0] == "make":
        targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        assert set(words[1:]) <= targets, f"no target {words[1:]} in the Makefile"
    elif words[0] == "python":
        module = ROOT / words[2].replace(".", "/") if words[1] == "-m" else ROOT / words[1]
        assert words[2] == "venv" or module.exists() or module.with_suffix(".py").exists(), words


def comparable(text: str) -> str:
    """Return a text without what may differ: decimals, and the width of columns."""
    text = re.sub(r"[-+]?\d[\d,]*\.\d+(e[-+]?\d+)?", "#", text)
    return "\n".join(" ".join(line.split()) for line in text.strip().splitlines())


def agrees(expected: Block | None, printed: str) -> bool:
    if expected is None:
        return not printed
    if expected.title == "for example":
        return len(expected.text.splitlines()) == len(printed.splitlines())
    return comparable(expected.text) == comparable(printed)
