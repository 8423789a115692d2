"""The processes of the pipeline, the machinery they share, and the operator's command."""
