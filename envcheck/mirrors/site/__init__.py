"""Configure, start, watch and audit your own mirror site, which consists of well-known servers."""
