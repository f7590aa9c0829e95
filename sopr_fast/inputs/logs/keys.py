"""Names of the arrays of a log, each with one meaning."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...runtime.text import list_names, printable

TIMES = ("timestamp", "timestamps", "time", "datetime", "date")  # these order the rows of an episode, and tell no ends
_NAMES = {  # used by D4RL, Minari, Gymnasium, Stable-Baselines3, d3rlpy, jaxrl, Tianshou, RLlib and data frames
    "states": "observations states obs observation state contexts context",
    "actions": "actions action act acts",
    "rewards": "rewards reward rew rews",
    "next_states": "next_observations next_states next_obs next_observation next_state obs_next new_obs",
    # The environment ended after this row; `masks` and `not_done` are 0 there.
    "terminals": "terminals terminations terminated terminateds terminal is_terminal masks not_done not_dones",
    "timeouts": "timeouts truncations truncated truncateds timeout",  # a limit cut the episode here
    "dones": "dones done",  # the environment ended, or a limit cut the episode
    "last": "dones_float episode_terminals is_last",  # last row of an episode, for either reason
    "first": "is_first episode_starts",  # first row of an episode
    "episodes": "episode episodes episode_id episode_ids episode_index eps_id "
    "traj trajectory traj_id trajectory_id trajectory_ids environment",
    "steps": f"step steps step_id timestep timesteps time_step frame_index t {' '.join(TIMES)}",
    "valid": "valid valids is_valid valid_mask attention_mask",  # 0 in rows that only pad episodes
    "log_probs": "infos/action_log_probs action_log_probs log_probs log_prob logprobs action_logp logp "
    "old_log_prob old_log_probs behavior_log_prob behavior_log_probs",
    "probabilities": "probabilities propensities propensity propensity_score pscore "
    "action_prob action_probs action_probability behavior_prob behaviour_prob",
}
STEP_TYPES = {"first": 0, "last": 2}  # numbers of `step_type` of dm_env and TF-Agents
KEYS = {part: tuple(names.split()) for part, names in _NAMES.items()}
ENVIRONMENT = "environment"  # numbers rows of several episodes each
ENDS = ("terminals", "timeouts", "dones", "last", "first")
NEEDED = ("states", "actions", "rewards")
_PARTS = {name: part for part, names in KEYS.items() for name in names}
_INVERTED = re.compile(
    r"((not|non|un)_?(done|terminal|terminated)s?|masks?|discounts?|continu\w*|alive)"
)  # 0 marks ends
LIMIT = "pass sopr_fast.load_log(…, max_episode_steps=…) (--max-episode-steps …)"
NUMBERED = re.compile(r"(.+?)[._ ]?\[?(\d+)\]?")  # obs_0, obs.0, obs[0]
GROUP = re.compile(r"[._ \[]\d+\]?$")  # number of a column of several


def part_of(name: str) -> str:
    """Return the part of a log that a name means in any case, "" if it means none."""
    return _PARTS.get(words(name), "")


def advise(part: str, *names: str) -> str:
    """Return how to say which arrays are a part of a log, in Python and in the shell."""
    names = (*map(printable, names[:10]), *["…"] * (len(names) > 10))
    shown = [*names] if len(names) > 1 else repr(names[0]) if names else "…"
    return f"sopr_fast.load_log(…, columns={{{part!r}: {shown}}}) (--columns {part}={','.join(names) or '…'})"


def missing(part: str, arrays: Mapping[str, Any], where: str | Path) -> ValueError:
    """Return the error of a log without a part, which names parts to join, if there are some."""
    if inner := nested(part, arrays):
        return ValueError(f"{where}: the {part} have names: choose by {advise(part, *inner)}")
    first, *others = KEYS[part]
    likewise = "; name actions, rewards, episodes and steps likewise" if part == "states" else ""
    return ValueError(
        f"{where}: no array {first!r} (or {', '.join(others)}): name yours by {advise(part)}; the arrays there "
        f"are {list_names([*map(str, arrays)])}{likewise}"
    )


def nested(part: str, arrays: Mapping[str, Any]) -> list[str]:
    """Return the names of arrays in groups of a part's name, such as `obs/position`."""
    return [str(name) for name in arrays if part in map(part_of, str(name).split("/")[:-1])]


def check_is_policy(names: Iterable[str], parts: Iterable[str] = (*NEEDED, "next_states", *ENDS)) -> None:
    """Raise ValueError if one of the names of a file's arrays is that of a part of a log, which policies lack."""
    for name in names:
        if part_of(name) in (*parts,):
            raise ValueError(
                f"a log (it holds {name!r}), not a policy: move it out of the folder of policies, or name the files"
            )


def is_inverted(name: str) -> bool:
    """Return whether an array of this name marks with 0 what others mark with 1."""
    return _INVERTED.fullmatch(last_word(name)) is not None


def last_word(name: str) -> str:
    """Return the last word of a path in `words`."""
    return words(name).rpartition("/")[2]


def words(name: str) -> str:
    """Return a name in lower case, with `_` between words, such as `episode_id` for "episodeId" or "Episode ID"."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|[ -]+", "_", str(name).strip()).lower()
