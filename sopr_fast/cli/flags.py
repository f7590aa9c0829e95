"""Flags in the place of the parameters that messages of the library name."""

from __future__ import annotations

import re

_PARAMETERS = (
    "action_count|activation|checkpoint|checkpoints|clusters|columns|ends|groups|incumbent|key|max_episode_steps|model|module|"
    "returns|simulator|skip|sort|states|subset_size|subsets|trust"
)
_OTHERS = {("load_returns", "columns"): "--return-columns"}  # of a function: flags that are not named as its parameters
_VALUE = r"(?:\{[^}]*\}|\[[^\]]*\]|'[^']*'|[^\s,;:()]*[^\s,;:().])"
_OPTION = re.compile(r"(?<![\w-])--[a-z]")
_DOOR = re.compile(r"; these are options of sopr_fast\.load_log\(log, …\): pass what it returns")
_PAIR = re.compile(rf"\b({_PARAMETERS})=({_VALUE})")
_CALL = re.compile(rf"(?:sopr_fast\.)?\b(load_\w+|Config)\((?:…, |'[^']*', )?((?:\w+={_VALUE}(?:, )?)+)\)")
_CALL_OR_PAIR = re.compile(f"{_CALL.pattern}|{_PAIR.pattern}")


def with_flags(message: str) -> str:
    """Return a message of the library for the command line, such as "pass --trust" for "pass trust=True".

    Messages that name flags, as those of the commands do, are returned.
    """
    if _OPTION.search(message):
        return message
    return _CALL_OR_PAIR.sub(_translated, _DOOR.sub("", message))


def _translated(match: re.Match[str]) -> str:
    function, pairs, parameter, value = match.groups()
    if function is None:
        return _flag(parameter, value)
    return _PAIR.sub(lambda pair: _flag(pair[1], pair[2], function), pairs).replace(", --", " --")


def _flag(parameter: str, value: str, function: str = "") -> str:
    """Return an option as one types it: a mapping becomes NAME=VALUE, a sequence words."""
    flag = _OTHERS.get((function, parameter), f"--{parameter.replace('_', '-')}")
    if value == "True":
        return flag
    if parameter == "module":
        value = f"package.file:{value}"
    value = re.sub(r"\[(.*?)\]", lambda names: names[1].replace(", ", ","), value)
    words = value.strip("{}").replace("': ", "=").replace("'", "")
    return f"{flag} {words.replace(', ', ' ')}"
