"""Read the reports of many nodes: find the files, read of each what a fleet needs, keep it in a database."""
