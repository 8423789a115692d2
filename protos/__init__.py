"""The contract and what is generated from it."""
