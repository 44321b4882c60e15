"""VolumeRestrictions."""
