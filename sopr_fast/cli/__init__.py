"""The command `sopr-fast`."""
