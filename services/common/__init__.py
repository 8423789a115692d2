"""Machinery that at least two processes need; it knows no service."""
