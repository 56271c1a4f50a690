"""Where bytes come from, and whether they are the right ones."""

from envcheck.mirrors.load import load

__all__ = ["load"]
