"""`make demo`: the main job on real parts, and what draws pictures of it."""
