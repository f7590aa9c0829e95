"""Killed runs and long runs: `python -m bench.reliability --help`."""
