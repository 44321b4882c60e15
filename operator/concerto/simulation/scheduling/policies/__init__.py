"""Policies that place pods in the simulated cluster, one file each; `registry` lists them."""
