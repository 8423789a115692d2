"""The engines that can run a model; `base.py` has their contract, each other file imports one library."""
