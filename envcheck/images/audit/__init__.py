"""Known vulnerabilities of what the locks bring, by an OSV database that the site has."""
