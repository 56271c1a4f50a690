"""What a site requires of its nodes, and how a run meets it."""
