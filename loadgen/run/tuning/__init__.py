"""Host profiles."""
