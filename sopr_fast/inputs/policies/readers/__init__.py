"""Readers of policy files, one for each format; `files.READERS` lists them."""
