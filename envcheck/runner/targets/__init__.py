"""The environments that can be validated, and how their worker is started."""
