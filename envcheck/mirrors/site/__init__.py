"""A mirror site of one's own: known servers, configured; started, watched and audited."""
