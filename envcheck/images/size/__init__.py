"""Where an image's bytes are: measured inside it, added up outside."""
