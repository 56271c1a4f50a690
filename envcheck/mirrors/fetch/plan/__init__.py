"""Which connection fetches which piece of a file."""
