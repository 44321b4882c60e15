"""The cluster as scheduling sees it, kept between cycles."""
