"""Bundles: parts of a store as files that can be carried."""
