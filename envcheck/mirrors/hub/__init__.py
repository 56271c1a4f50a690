"""Hugging Face hubs: revisions, files, downloads, cache layout."""
