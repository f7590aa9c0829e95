"""Rank policies before any is deployed: fast supervised off-policy ranking (SOPR-T, ICML 2022)."""

from pkgutil import extend_path

# In a source folder, the compiled modules are those of the installed package.
__path__ = extend_path(__path__, __name__)

from ._native import build_info
from ._version import __version__

__all__ = ["__version__", "build_info"]
