"""Other processes of Python, which import what this one does."""

import os
import subprocess
import sys
from typing import Any

PATH = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def python(*arguments: str, **options: Any) -> subprocess.CompletedProcess:
    environment = os.environ | PATH | options.pop("env", {})
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, **options)
