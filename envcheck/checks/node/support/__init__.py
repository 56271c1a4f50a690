"""Helpers that several node checks share."""
