"""A virtual-time cluster that runs the production scheduling and capacity code."""
