"""Runs a scenario: workers, phases, the run directory, progress."""
