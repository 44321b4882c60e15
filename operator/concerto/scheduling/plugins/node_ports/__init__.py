"""Host ports."""
