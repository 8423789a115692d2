"""Reads lines of text."""
