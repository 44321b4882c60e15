"""Even spread of pods over domains."""
