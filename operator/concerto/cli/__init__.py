"""The commands of `concerto`."""
