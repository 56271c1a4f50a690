"""Where packages and models come from, and whether they are the right ones."""
