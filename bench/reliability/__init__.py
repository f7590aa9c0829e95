"""Attacks on files and processes: kills, replaced files, forks, long runs. `python -m bench.reliability --help`."""
