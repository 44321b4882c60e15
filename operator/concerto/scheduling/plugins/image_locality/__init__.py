"""Images that are on nodes already."""
