"""Prove PyTorch/CUDA environments: resolve, build, validate.

This module and `envcheck.checks` are imported by foreign interpreters: standard library only, Python >= 3.9.
"""

__version__ = "0.1.0"
