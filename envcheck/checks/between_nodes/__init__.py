"""Checks of what lies between nodes: `envcheck fleet group` runs them, beside others, with ranks on several nodes."""
