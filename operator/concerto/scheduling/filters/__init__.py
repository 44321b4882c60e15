"""Filters: which nodes a pod may go to. One file each; `registry` lists them."""
