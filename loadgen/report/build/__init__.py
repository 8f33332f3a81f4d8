"""Builders of a report from what runs recorded."""
