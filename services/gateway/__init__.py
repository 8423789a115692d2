"""The front door: documents in through gRPC and Kafka, their text out."""
