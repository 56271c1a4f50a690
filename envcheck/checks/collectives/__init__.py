"""Collectives: exact cases, timed curves, and the transport that NCCL says it took."""
