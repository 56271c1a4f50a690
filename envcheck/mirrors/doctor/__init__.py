"""Find mistakes in this machine's mirror settings, Dockerfiles and scripts."""
