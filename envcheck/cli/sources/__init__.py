"""Choose the mirrors that a command reads from, and show its downloads."""
