"""Scores by measured load: Trimaran's."""
