"""Power logs."""
