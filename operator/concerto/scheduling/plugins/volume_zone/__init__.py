"""VolumeZone."""
