"""Which node, link or GPU is at fault: tests of groups of nodes, planned from the results so far."""
