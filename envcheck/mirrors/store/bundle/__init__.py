"""Bundles: part of a store as files that people carry to machines without a network."""
