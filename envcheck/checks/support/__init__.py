"""What checks share: groups of ranks, cases, processes, and the files of an environment."""
