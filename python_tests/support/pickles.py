"""Pickles that run code."""


class Runs:
    """An object that pickles as a call."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call
