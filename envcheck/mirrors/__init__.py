"""Where bytes come from, and whether they are the right ones."""
