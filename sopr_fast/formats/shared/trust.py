"""Files that this package reads itself, or that their library opens with trust."""

from __future__ import annotations

from collections.abc import Callable

from ...inputs.policies.actor import Actor
from ...inputs.policies.policy import Policy
from ...inputs.policies.reading_options import ReadingOptions
from ...runtime.pickles import RefusedError


def own_or_opened(
    library: str, options: ReadingOptions, read: Callable[[], Actor], opened: Callable[[], Policy]
) -> Policy:
    """Return the actor that this package reads; if it refuses, with trust, the policy that the library opens."""
    try:
        return read()
    except RefusedError as error:
        if not options.trust:
            raise RefusedError(f"{error}; trust=True lets {library} open it, code included") from error
    if options.stochastic:
        raise ValueError("what its library opens acts by its means: load it without stochastic")
    return opened()
