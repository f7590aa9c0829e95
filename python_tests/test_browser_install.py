"""`.ci/browser` finds a browser, or installs one from Debian or by Playwright; none of which is an error."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "browser"
NEEDED = ("bash", "dirname", "timeout", "env", "cp", "chmod", "touch")  # real commands; all others are stubs

pytestmark = pytest.mark.skipif(not SCRIPT.exists() or not shutil.which("bash"), reason="needs the sources and bash")


@pytest.fixture
def run(tmp_path):
    """Return a function that runs the script with the given stubs: name → body in shell; and says what they did."""
    commands, log = tmp_path / "commands", tmp_path / "log"
    for folder in (commands, tmp_path / ".ci", tmp_path / ".venv" / "bin"):
        folder.mkdir(parents=True)
    shutil.copy(SCRIPT, tmp_path / ".ci" / "browser")
    for name in NEEDED:
        (commands / name).symlink_to(shutil.which(name))
    log.touch()

    def stub(path, body):
        path.write_text(f'#!{shutil.which("bash")}\necho "${{0##*/}} $*" >>{log}\n{body}\n')
        path.chmod(0o755)

    def call(stubs, *, user=0, playwright="exit 1"):
        for name, body in {"id": f"echo {user}", **stubs}.items():
            stub(commands / name, body.format(commands=commands))
        stub(tmp_path / ".venv" / "bin" / "playwright", playwright)
        done = subprocess.run(
            [tmp_path / ".ci" / "browser"],
            env={"PATH": os.fspath(commands), "LC_ALL": "C"},
            capture_output=True,
            text=True,
            check=False,
        )
        calls = [line for line in log.read_text().splitlines() if not line.startswith("id ")]
        return done.returncode, (done.stdout + done.stderr).strip(), calls

    return call


def installs(package):
    """Return an apt-get that has one package."""
    return (
        f'case "$*" in "install "*" {package}") echo exit >{{commands}}/{package}; chmod +x {{commands}}/{package};; '
        "update*) ;; *) exit 100;; esac"
    )


UPDATE = "apt-get update -qq"
INSTALL = "apt-get install -y -qq --no-install-recommends"


def test_a_browser_that_is_there_is_used(run):
    code, said, calls = run({"chromium": "exit", "apt-get": "exit 1"})
    assert (code, calls) == (0, [])
    assert said.startswith("tests of reports use ") and said.endswith("/chromium")


@pytest.mark.parametrize(
    ("package", "tried"),
    [("chromium-headless-shell", ["chromium-headless-shell"]), ("chromium", ["chromium-headless-shell", "chromium"])],
)
def test_debian_installs_the_first_package_that_there_is(run, package, tried):
    code, said, calls = run({"apt-get": installs(package)})
    assert (code, said.splitlines()[-1]) == (0, f"installed {package} for the tests of reports")
    assert calls == [UPDATE, *(f"{INSTALL} {name}" for name in tried)]


def test_other_users_install_by_sudo(run):
    sudo = 'shift; exec "$@"'  # -n COMMAND
    code, said, calls = run({"apt-get": installs("chromium"), "sudo": sudo, "true": "exit"}, user=1000)
    assert (code, said.splitlines()[-1]) == (0, "installed chromium for the tests of reports")
    assert [call for call in calls if call.startswith("sudo")][-1].startswith("sudo -n env DEBIAN_FRONTEND")


@pytest.mark.parametrize("stubs", [{}, {"apt-get": "exit 100"}, {"apt-get": "exit", "sudo": "exit 1"}])
def test_playwright_is_asked_where_debian_cannot(run, stubs):
    code, said, calls = run(stubs, user=1000 if "sudo" in stubs else 0, playwright="exit 0")
    assert (code, said) == (0, "Playwright installed a Chromium for the tests of reports")
    assert calls[-1] == "playwright install chromium-headless-shell"


def test_no_browser_is_no_error(run):
    code, said, _ = run({"apt-get": "exit 100"})
    assert code == 0
    assert said == "no browser here and none could be installed: tests of reports in a browser will be skipped"
