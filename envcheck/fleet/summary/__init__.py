"""Say of a fleet which nodes failed, which differ from their kind, and which to use now."""
