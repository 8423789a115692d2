"""Finds the lines of text on a page."""
