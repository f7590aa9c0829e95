"""Run every kernel on several threads, from several Python threads, for ThreadSanitizer (`make sanitize-threads`).

Torch's own operators stay on one thread, since its OpenMP runtime is not instrumented.
"""

import signal
import threading

import torch
from support.operators import CALLS, run

from sopr_fast import native, ops


def call_all() -> None:
    with native.torch_on_one_thread():
        for call in CALLS.values():
            run(call.operator, call)


def interrupt_kmeans() -> None:
    def handler(*_: object) -> None:
        raise KeyboardInterrupt

    points = torch.randn(1, 100_000, 8)
    start = points[:, :2000].contiguous()
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        ops.kmeans(points, 2000, init=start, iterations=10**6, tolerance=0)
    except KeyboardInterrupt:
        return
    raise AssertionError("not interrupted")


if __name__ == "__main__":
    torch.set_num_threads(4)
    call_all()
    others = [threading.Thread(target=call_all) for _ in range(3)]
    for thread in others:
        thread.start()
    call_all()
    for thread in others:
        thread.join()
    interrupt_kmeans()
    print(f"no data race in {len(CALLS)} operator calls on {native.threads()} threads, alone and from 4 threads")
