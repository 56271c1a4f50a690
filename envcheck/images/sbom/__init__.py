"""A bill of materials of a cell's image: what the locks bring, with hashes and licences."""
