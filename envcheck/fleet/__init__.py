"""Many nodes: what their reports say together, what may be used now, and which cells run on all of them."""
