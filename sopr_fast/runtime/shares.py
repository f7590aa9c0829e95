"""Work by policy that the processes of a group share, and whose results all of them get."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from . import distributed
from .blocks import Blocks
from .progress import progress_bar


def share_policies(
    count: int,
    compute: Callable[[slice], Tensor],
    *,
    singly: bool = False,
    description: str = "",
) -> Tensor:
    """Return what a function computes for P policies; the processes of the group share them.

    The function gets the same blocks of policies in any number of processes, so that its results have the same bits.

    Args:
        count: P.
        compute: Function that returns one row for each policy of a slice, (p, ...). It works only in this process.
            Without policies it is called once, with an empty slice.
        singly: Pass policies one by one, where the function gains nothing from several; otherwise at most 8.
        description: Name of the work in the progress bar; "" for none.

    Returns:
        (P, ...) rows of all policies, in each process.
    """
    group, blocks = distributed.current(), Blocks(count)
    parts = [slice(i, i + 1) for i in range(count)]
    if not singly:
        parts = [part for b in range(len(blocks)) if (part := blocks.policies_of(slice(b, b + 1))).start < part.stop]
    parts = parts or [slice(0, 0)]
    own = parts[group.part(len(parts))]
    rows = []
    total = own[-1].stop - own[0].start if own else 0
    with distributed.alone(), progress_bar(total, description, "policy", show=bool(description)) as bar:
        for part in own:
            rows.append(compute(part))
            bar.update(part.stop - part.start)
    if group.count == 1:
        return torch.cat(rows)
    # A process without policies does not know the shape of a row.
    rows = [torch.from_numpy(each) for own in group.gather_objects([row.cpu().numpy() for row in rows]) for each in own]
    return torch.cat(rows)
