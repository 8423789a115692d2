"""Other systems that read documents, measured on the same pages in environments of their own."""
