"""Stand-ins that tests of several packages share."""
