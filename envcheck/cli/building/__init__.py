"""What `envcheck build` does around a build: which cell it is, what it prints."""
