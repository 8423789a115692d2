"""ocrctl: starts the pipeline on one machine, sends it documents, and says what is missing."""
