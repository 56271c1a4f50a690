"""The answer for a fleet in other forms: terminal, one HTML page, Prometheus with rules and a dashboard."""
