"""`python -m sopr_fast`: what is installed, one fact a line; with arguments, the command `sopr-fast`."""

import sys


def main() -> None:
    """Print what `build_info` returns."""
    from .runtime.native import build_info

    info = build_info()
    why_no_cuda = info.pop("why_no_cuda")
    for name, value in info.items():
        if isinstance(value, dict):
            for key, inner in value.items():
                print(f"{name + '.' + key:<28} {inner or why_no_cuda}")
        else:
            text = ", ".join(value) if isinstance(value, list) else value
            print(f"{name:<28} {text or 'none'}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        from .cli import main as run
        from .cli_processes import leave

        leave(run())
    main()
