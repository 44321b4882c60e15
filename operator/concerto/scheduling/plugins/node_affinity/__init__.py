"""Required and preferred node affinity."""
