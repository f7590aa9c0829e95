"""Run every kernel on several threads, from several Python threads, for ThreadSanitizer (`make sanitize-threads`).

Torch's own operators stay on one thread, since its OpenMP runtime is not instrumented.
"""

import threading

import torch
from support.operators import CALLS, run

from sopr_fast import native


def call_all() -> None:
    with native.torch_on_one_thread():
        for call in CALLS.values():
            run(call.operator, call)


if __name__ == "__main__":
    torch.set_num_threads(4)
    call_all()
    others = [threading.Thread(target=call_all) for _ in range(3)]
    for thread in others:
        thread.start()
    call_all()
    for thread in others:
        thread.join()
    print(f"no data race in {len(CALLS)} operator calls on {native.threads()} threads, alone and from 4 threads")
