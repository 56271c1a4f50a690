"""Who we are to a registry: the logins of this machine, and what a registry asks for."""
