"""From measurements to outcome rows and one verdict."""
