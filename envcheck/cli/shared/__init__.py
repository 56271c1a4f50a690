"""Options, parameter types, streams and texts that several commands share."""
