"""Workers of a run, on this host and on others."""
