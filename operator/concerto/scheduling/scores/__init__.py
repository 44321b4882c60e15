"""Scores: which of the feasible nodes is best. One file each; `registry` lists them."""
