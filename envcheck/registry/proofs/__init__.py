"""Proofs as data: keys, statements, envelopes, policies, and what holds for a node."""
