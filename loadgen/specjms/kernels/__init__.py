"""Compiled functions of the supply chain, and the records that they read."""
