"""Process groups, and what collectives must deliver and how fast."""
