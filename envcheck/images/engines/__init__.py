"""Where a plan becomes an image: one module an engine."""
