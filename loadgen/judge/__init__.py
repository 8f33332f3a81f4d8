"""Ledger, own delay and verdict: pure functions of counts."""
