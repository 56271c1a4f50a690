"""What runs inside the environment under test: standard library and torch only."""
