"""The load generator."""

import os

# Processes are forked here only to become others at once; gRPC would complain of it while a channel is open.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
