"""Logs of a walk in D4RL's names."""

import numpy as np

NEXT = "next_observations"


def walk(lengths=(3, 4, 2, 3, 2), ends=""):
    """Return a log with D4RL's names, of episodes of these lengths that begin near 0 and go up by small steps.

    `ends` has a letter for each episode: `t` for a terminal state, `c` for a cut, a space for no mark. Without letters,
    the log has no flags.
    """
    random, count, last = np.random.default_rng(0), sum(lengths), np.cumsum(lengths) - 1
    visited = [np.cumsum(random.uniform(0.5, 1, (n + 1, 3)), 0).astype(np.float32) for n in lengths]
    log = {"observations": np.concatenate([x[:-1] for x in visited])}
    log |= {"actions": random.normal(size=(count, 2)).astype(np.float32), "rewards": np.ones(count, np.float32)}
    log[NEXT] = np.concatenate([x[1:] for x in visited])
    marks = {"terminals": "t", "timeouts": "c"} if ends else {}
    return log | {flag: np.isin(np.arange(count), last[np.array([*ends]) == mark]) for flag, mark in marks.items()}


def without(log, *names):
    return {name: values for name, values in log.items() if name not in names}


def only(rows, log):
    return {name: values[rows] for name, values in log.items()}
