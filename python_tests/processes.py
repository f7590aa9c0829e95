"""Functions of `distributed_cases` in several processes of `torch.distributed`, only on the loopback interface."""

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
TIMEOUT = 240  # seconds, far more than any of these tests needs


def run(
    count: int, function: str, *arguments: object, folder: Path, backend: str = "gloo"
) -> list[subprocess.CompletedProcess]:
    """Run a function in each of several processes until all have ended.

    Args:
        count: Number of processes.
        function: Name of a function in `distributed_cases`.
        arguments: Texts that it gets.
        folder: Folder for the file through which the processes find each other.
        backend: Backend of their group.
    """
    store = folder / f"store-{len(list(folder.glob('store-*')))}"
    command = [sys.executable, "-m", "distributed_cases", backend, str(store), str(count)]
    processes = [
        subprocess.Popen(
            [*command, str(rank), function, *map(str, arguments)],
            cwd=FOLDER,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        outputs = [process.communicate(timeout=TIMEOUT) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [
        subprocess.CompletedProcess(process.args, process.returncode, *output)
        for process, output in zip(processes, outputs, strict=True)
    ]


def environment() -> dict[str, str]:
    """Return variables for processes that find each other through the loopback interface and import this checkout."""
    path = os.pathsep.join(filter(None, sys.path))
    return {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
