"""Renderers of a report, one for each format."""
