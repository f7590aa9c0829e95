"""`python -m sopr_fast`: what is installed; with arguments, the command `sopr-fast`."""

import sys

from .cli.main import main
from .cli.torchrun import leave

if __name__ == "__main__":
    leave(main(sys.argv[1:] or ["info"]))
