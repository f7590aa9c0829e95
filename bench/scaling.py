"""How time, memory and communication grow with policies and processes.

    python bench/scaling.py policies                 # rank 100 to 10,000 candidates on a log of 20 million rows
    python bench/scaling.py known                    # train on and evaluate 100 and 1,000 known policies
    python bench/scaling.py estimators               # evaluate with each estimator, in one and in two processes
    python bench/scaling.py processes                # two processes of one thread against one process of two threads
    python bench/scaling.py delay                    # predict 8 and 64 processes by delaying exchanges

Results are kept in out/scaling.json: an interrupted run continues, and measured rows are not measured again. Each row
is measured in processes of its own, which show their progress on stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import logging
import math
import os
import subprocess
import sys
import tempfile
import time
import types
import warnings
from pathlib import Path

import numpy as np

STATE_DIM, ACTION_DIM = 17, 6
RESULTS = Path("out/scaling.json")
SUBSETS = 5
WARM_UP = 1  # steps


class Linear:
    """A cheap policy: tanh of a linear map."""

    def __init__(self, seed: int) -> None:
        self.weight = np.random.default_rng([seed, 3]).normal(0, 0.3, (STATE_DIM, ACTION_DIM)).astype(np.float32)

    def __call__(self, states: np.ndarray) -> np.ndarray:
        return np.tanh(states @ self.weight)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("policies", "known", "estimators", "processes", "delay", "child"))
    parser.add_argument("--rows", type=int, default=20_000_000, help="rows of the log")
    parser.add_argument("--counts", type=int, nargs="+", default=[100, 300, 1000, 3000, 10_000], help="candidates")
    parser.add_argument("--subset-size", type=int, default=16384)
    parser.add_argument("--clusters", type=int, default=256)
    parser.add_argument("--known", type=int, default=32, help="known policies in training")
    parser.add_argument("--updates", type=int, default=400, help="gradient steps of an estimator")
    parser.add_argument("--log-rows", type=int, default=20_000, help="transitions for the estimators")
    parser.add_argument("--rounds", type=int, default=5, help="repeats of both sides of a comparison, in turn")
    parser.add_argument("--steps", type=int, default=6, help="steps that are timed")
    parser.add_argument("--latency", type=float, default=50e-6, help="seconds of one message between machines")
    parser.add_argument("--bandwidth", type=float, default=1.25e9, help="bytes a second between machines")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.what == "child":
        child(options.child)
        return
    RESULTS.parent.mkdir(exist_ok=True)
    sizes = {"subset_size": options.subset_size, "clusters": options.clusters}
    commands = {
        "policies": time_ranking,
        "known": time_known,
        "estimators": time_estimators,
        "processes": compare,
        "delay": delay,
    }
    commands[options.what](options, sizes)


def time_ranking(options: argparse.Namespace, sizes: dict) -> None:
    """Print seconds and memory of ranking candidates, by their count."""
    log = write_log(options.rows)
    problems = [{"kind": "rank", "log": str(log), "candidates": count, **sizes} for count in options.counts]
    rows = [measure(problem, processes=1, threads=1) for problem in problems]
    show(rows, "candidates", "seconds", "scoring_cpu", "peak_mb")
    slopes(rows)


def time_known(options: argparse.Namespace, sizes: dict) -> None:
    """Print seconds and memory of `fit` and `evaluate`, by the number of known policies."""
    problems = [{"kind": "known", "known": count, "steps": 2, **sizes} for count in (100, 1000)]
    show([measure(problem, processes=1, threads=1) for problem in problems], "known", "seconds", "cpu", "peak_mb")


def time_estimators(options: argparse.Namespace, sizes: dict) -> None:
    """Print the CPU seconds of a process in `evaluate` with one method, for one and for two processes."""
    counts = {"known": options.known, "updates": options.updates, "rows": options.log_rows}
    rows = []
    for method in METHODS:
        problem = {"kind": "estimators", "method": method, **counts}
        one, two = (measure(problem, processes=count, threads=1) for count in (1, 2))
        rows.append({"one process": one["busiest"], "each of two": two["busiest"], "method": method})
    show(rows, "one process", "each of two", "method")


def compare(options: argparse.Namespace, sizes: dict) -> None:
    """Print the efficiency of two processes of one thread beside one process of two threads: medians over rounds."""
    for kind in ("fit", "rank"):
        counts = {"known": options.known, "candidates": options.known, "steps": options.steps}
        problems = [{"kind": kind, **counts, **sizes, "round": i} for i in range(options.rounds)]
        sides = ({"processes": 1, "threads": 2}, {"processes": 2, "threads": 1})
        rounds = [[measure(problem, **side) for side in sides] for problem in problems]
        print(kind)
        show(list(itertools.chain(*rounds)), "processes", "threads", "seconds", "cpu", "exchanging", "sent_bytes")
        for unit in ("seconds", "cpu"):
            ratios = [one[unit] / two[unit] for one, two in rounds]
            print(f"efficiency in {unit}: median {np.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}")
        share = np.median([two["exchanging"] / two["seconds"] for _, two in rounds])
        print(f"share of time in {rounds[0][1]['exchanges']} exchanges: median {share:.3f}")


def delay(options: argparse.Namespace, sizes: dict) -> None:
    """Print the seconds of a training step in larger groups, predicted by delays in the exchanges of two processes."""
    rows = []
    for count in (2, 8, 64):
        delays = {"count": count, "latency": options.latency, "bandwidth": options.bandwidth}
        problem = {"kind": "fit", "known": options.known, "steps": options.steps, "delay": delays, **sizes}
        row = measure(problem, processes=2, threads=1)
        rows.append({**row, "predicted": count, "policies": count * (options.known // 2)})
    show(rows, "predicted", "policies", "seconds", "exchanging", "exchanges", "sent_bytes")


def measure(problem: dict, *, processes: int, threads: int) -> dict:
    """Return the result of a problem, measured now or before."""
    key = json.dumps([problem, processes, threads], sort_keys=True)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if key not in results:
        with tempfile.TemporaryDirectory() as folder:
            child_problem = {**problem, "processes": processes, "store": f"{folder}/store"}
            command = [sys.executable, __file__, "child", "--child"]
            passive = {"OMP_WAIT_POLICY": "passive", "OPENBLAS_NUM_THREADS": "1"}  # CPU seconds are those of work alone
            shared = {**os.environ, "OMP_NUM_THREADS": str(threads), "GLOO_SOCKET_IFNAME": "lo", **passive}
            children = [
                subprocess.Popen(
                    [*command, json.dumps({**child_problem, "rank": rank})],
                    stdout=subprocess.PIPE,
                    env=shared,
                    text=True,
                )
                for rank in range(processes)
            ]
            outputs = [each.communicate()[0] for each in children]
            if any(each.returncode for each in children):
                sys.exit("a process failed")
        rows = [json.loads(output.splitlines()[-1]) for output in outputs]
        cpu = [row["cpu"] for row in rows]
        results[key] = {"processes": processes, "threads": threads, **rows[0], "cpu": sum(cpu), "busiest": max(cpu)}
        partial = RESULTS.with_suffix(".partial")
        partial.write_text(json.dumps(results, indent=1))
        partial.replace(RESULTS)
    return {**problem, **results[key]}


def child(problem: dict) -> None:
    """Print what a problem takes in this process of its group, as JSON."""
    import torch.distributed as dist

    from sopr_fast.runtime import distributed, group

    warnings.simplefilter("ignore")
    if problem["processes"] > 1:
        store = f"file://{problem['store']}"
        dist.init_process_group("gloo", init_method=store, rank=problem["rank"], world_size=problem["processes"])
    group.watch = watch = Watch(problem.get("delay"))
    run = {"rank": run_rank, "known": run_known, "estimators": run_estimator, "fit": run_steps}[problem["kind"]]
    print(json.dumps({**run(problem, watch), "peak_mb": peak_bytes() / 2**20}))
    distributed.stop()


def run_rank(problem: dict, watch: Watch) -> dict:
    """Rank candidates with a model of one step; `scoring_cpu` are the CPU seconds of policies and encoder."""
    import sopr_fast
    from sopr_fast.runtime import timing

    policies, states = make_inputs(problem, 16)
    config = make_config(problem, 1)
    ranker = sopr_fast.fit(policies, np.arange(16), states, config=config, keep_subsets=0)
    candidates = {f"candidate-{i:05d}": Linear(1000 + i) for i in range(problem["candidates"])}
    timing.time = types.SimpleNamespace(perf_counter=time.process_time)  # stages in CPU seconds
    logging.basicConfig(level=logging.INFO, format="%(message)s")  # progress on stderr
    with watch.timing() as taken:
        ranking = ranker.rank(candidates, problem.get("log") or states, subsets=SUBSETS)
    return {**taken, "scoring_cpu": ranking.timings["policies"] + ranking.timings["encoding"]}


def run_known(problem: dict, watch: Watch) -> dict:
    """Train on known policies and evaluate two methods on them."""
    import sopr_fast
    from sopr_fast import estimators

    known = problem["known"]
    policies, states = make_inputs(problem, known)
    config = make_config(problem, WARM_UP + problem["steps"])
    methods = {"nearest policy": estimators.NearestPolicy(), "SOPR-T": estimators.SOPR(config=config, subsets=1)}
    with watch.timing() as taken:
        sopr_fast.fit(policies, np.arange(known), states, config=config, keep_subsets=0)
        sopr_fast.evaluate(policies, np.arange(known), states, methods=methods, progress=False)
    return taken


def run_steps(problem: dict, watch: Watch) -> dict:
    """Train on known policies; returns the fastest step after the warm-up."""
    import sopr_fast
    from sopr_fast.sopr import training

    steps, step = [], training._Trainer.step

    def timed_step(trainer: training._Trainer) -> None:
        with watch.timing() as taken:
            step(trainer)
        steps.append(taken)

    training._Trainer.step = timed_step
    policies, states = make_inputs(problem, problem["known"])
    config = make_config(problem, WARM_UP + problem["steps"])
    sopr_fast.fit(policies, np.arange(len(policies)), states, config=config, keep_subsets=0)
    return min(steps[WARM_UP:], key=lambda taken: taken["seconds"])


METHODS = {
    "nearest policy": lambda methods, updates: methods.NearestPolicy(rows=2048),
    "Gaussian process": lambda methods, updates: methods.GaussianProcess(rows=2048),
    "SARSA critic": lambda methods, updates: methods.BehaviourQ(updates=updates, hidden=(128, 128)),
    "LSTDQ": lambda methods, updates: methods.LSTDQ(updates=updates),
    "FQE": lambda methods, updates: methods.FQE(updates=updates, batch_size=128, hidden=(64, 64), ensemble=2),
    "DualDICE": lambda methods, updates: methods.DualDICE(updates=updates, batch_size=128, hidden=(64, 64)),
    "model-based": lambda methods, updates: methods.ModelBased(
        updates=updates, hidden=(128, 128), ensemble=3, rollouts=10, horizon=30
    ),
    "importance weighting": lambda methods, updates: methods.ImportanceWeighting(updates=updates, bootstraps=50),
}


def run_estimator(problem: dict, watch: Watch) -> dict:
    """Evaluate one method on a log of random transitions."""
    import torch

    import sopr_fast
    from sopr_fast import estimators as methods

    count, random = problem["rows"], np.random.default_rng(0)
    states = random.standard_normal((count + 1, STATE_DIM)).astype(np.float32)
    ends = np.arange(1, count + 1) % 100 == 0
    log = {
        "observations": states[:-1],
        "actions": np.tanh(random.standard_normal((count, ACTION_DIM))).astype(np.float32),
        "rewards": states[1:, 0],
        "next_observations": states[1:],
        "terminals": np.zeros(count, bool),
        "timeouts": ends,
    }
    policies = {}
    for i in range(problem["known"]):
        torch.manual_seed(i)
        widths = (STATE_DIM, 256, 256, ACTION_DIM)
        layers = [layer for pair in itertools.pairwise(widths) for layer in (torch.nn.Linear(*pair), torch.nn.Tanh())]
        policies[f"policy-{i:03d}"] = torch.nn.Sequential(*layers)
    returns = {name: float(i) for i, name in enumerate(policies)}
    method = METHODS[problem["method"]](methods, problem["updates"])
    with watch.timing() as taken:
        sopr_fast.evaluate(policies, returns, log, methods={problem["method"]: method}, discount=0.95, progress=False)
    return taken


def make_inputs(problem: dict, known: int) -> tuple[dict[str, Linear], np.ndarray]:
    """Return `known` policies and states (4 * subset_size, 17) float32."""
    states = np.random.default_rng(0).standard_normal((4 * problem["subset_size"], STATE_DIM)).astype(np.float32)
    return {f"known-{i:03d}": Linear(i) for i in range(known)}, states


def make_config(problem: dict, steps: int):
    """Return a `Config` of one subset and so many training steps."""
    import sopr_fast

    sizes = {"subset_size": problem["subset_size"], "clusters": problem["clusters"]}
    return sopr_fast.Config(**sizes, subsets=1, steps=steps, kmeans_iterations=20)


class Watch:
    """Counts and times exchanges, and delays them as a larger group would.

    A message passes log2(count) stages of a tree, forth and back for the header; each process sends its bytes once.
    """

    def __init__(self, delay: dict | None) -> None:
        self.delay = delay
        self.seconds, self.exchanges, self.sent = 0.0, 0, 0

    @contextlib.contextmanager
    def timing(self):
        """Count from 0; yields a dictionary that is filled with seconds, CPU seconds and exchanges at the end."""
        self.seconds, self.exchanges, self.sent = 0.0, 0, 0
        taken: dict[str, float] = {}
        wall, cpu = time.perf_counter(), time.process_time()
        yield taken
        taken |= {"seconds": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        taken |= {"exchanging": self.seconds, "exchanges": self.exchanges, "sent_bytes": self.sent}

    @contextlib.contextmanager
    def __call__(self, name: str, sent: int):
        begin = time.perf_counter()
        yield
        if self.delay:
            count = self.delay["count"]
            shared = name in ("scatter", "pieces")  # of the gradient, in as many parts as there are processes
            total = sent * 2 * (count - 1) / count if shared else sent * (count - 1)
            time.sleep(2 * math.ceil(math.log2(count)) * self.delay["latency"] + total / self.delay["bandwidth"])
            sent = total
        self.seconds += time.perf_counter() - begin
        self.exchanges += 1
        self.sent += int(sent)


def peak_bytes() -> int:
    """Return the largest memory of this process so far; getrusage may give that of the parent."""
    with open("/proc/self/status") as file:
        return int(dict(line.split(":") for line in file)["VmHWM"].split()[0]) * 1024


def write_log(rows: int) -> Path:
    """Return a file of random states (rows, 17) float32, written if it is not there."""
    path = Path(tempfile.gettempdir(), f"sopr_fast-scaling-{rows}.npy")
    if not path.exists():
        partial = path.with_suffix(".partial")
        states = np.lib.format.open_memmap(partial, "w+", np.float32, (rows, STATE_DIM))
        random = np.random.default_rng(0)
        for first in range(0, rows, 1 << 18):
            part = states[first : first + (1 << 18)]
            part[:] = random.integers(-128, 128, part.shape, np.int16) / np.float32(64)
        states.flush()
        partial.rename(path)
    return path


def show(rows: list[dict], *names: str) -> None:
    print("  ".join(f"{name:>12}" for name in names))
    for row in rows:
        print(
            "  ".join(f"{row[name]:>12.4g}" if isinstance(row[name], float) else f"{row[name]:>12}" for name in names)
        )


def slopes(rows: list[dict]) -> None:
    """Print the exponent of time in candidates between measured counts."""
    for a, b in itertools.pairwise(rows):
        slope = math.log(b["scoring_cpu"] / a["scoring_cpu"]) / math.log(b["candidates"] / a["candidates"])
        print(f"{a['candidates']} to {b['candidates']} candidates: CPU time grows with the power {slope:.3f}")


if __name__ == "__main__":
    main()
