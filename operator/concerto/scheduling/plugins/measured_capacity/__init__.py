"""Filter and score by measured capacity."""
