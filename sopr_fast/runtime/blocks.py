"""A fixed partition of policies, and sums over it in a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor

_BLOCK = 8  # policies


@dataclass(frozen=True)
class Blocks:
    """A fixed partition of policies, whose sums are added in a fixed order, whatever processes compute them.

    Blocks hold 8 policies or a few less; their number is even, so that two processes have equal shares.

    Attributes:
        policies: Number of policies.
        whole: All policies are one block.
    """

    policies: int
    whole: bool = False

    def __len__(self) -> int:
        return 1 if self.whole else 2 * -(-self.policies // (2 * _BLOCK))

    def first(self, block: int) -> int:
        """Return the first policy of a block."""
        return self.policies * block // len(self)

    def policies_of(self, blocks: slice) -> slice:
        """Return the policies of adjacent blocks."""
        return slice(self.first(blocks.start), self.first(blocks.stop))


def add_up(first: int, last: int, block: Callable[[int], Tensor]) -> Tensor:
    """Return the sum of blocks `first` to `last`, added in the order of a binary tree."""
    if last - first == 1:
        return block(first)
    middle = (first + last) // 2
    return add_up(first, middle, block) + add_up(middle, last, block)


def largest_subtrees(first: int, last: int, part: slice) -> Iterator[tuple[int, int]]:
    """Yield the largest subtrees of the tree over blocks `first` to `last` whose blocks are all in the part."""
    if part.start <= first and last <= part.stop:
        if first < last:
            yield first, last
    elif first < part.stop and part.start < last:
        middle = (first + last) // 2
        yield from largest_subtrees(first, middle, part)
        yield from largest_subtrees(middle, last, part)
