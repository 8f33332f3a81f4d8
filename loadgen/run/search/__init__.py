"""Searches and sweeps: many runs, one after the other."""
