"""What measurements of native extensions come to; runs in envcheck's own process."""
