"""Peers of sopr_fast in the benchmarks: the same computation with the same parameters in other ways."""
