"""NodeVolumeLimits."""
