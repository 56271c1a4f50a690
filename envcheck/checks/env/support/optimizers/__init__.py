"""Optimizers, schedules and clipping, by their documented formulas."""
