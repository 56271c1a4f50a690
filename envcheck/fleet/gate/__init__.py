"""Whether a node may take work now: its last verdict where that is fresh, else a quick run within a budget."""
