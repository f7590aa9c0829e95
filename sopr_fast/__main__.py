"""`python -m sopr_fast`: what is installed; with arguments, the command `sopr-fast`."""

import sys

from .cli.main import leave, main

if __name__ == "__main__":
    leave(main(sys.argv[1:] or ["info"]))
