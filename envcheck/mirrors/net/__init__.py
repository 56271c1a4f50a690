"""The one HTTP client, with credentials, and what its errors mean."""
