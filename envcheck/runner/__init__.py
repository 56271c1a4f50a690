"""Plan, start, watch and end checks. Imported by foreign interpreters: this file holds no import."""
