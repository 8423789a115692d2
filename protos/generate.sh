#!/bin/sh
# Regenerates all that is derived from ocr.proto: Python code, JSON Schemas and the AsyncAPI document.
# The directory is mapped while protoc runs, so that the generated imports are those of the package.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
"$python" -m grpc_tools.protoc -Iservices/common/pb=protos/ocr/v1 \
    --python_out=. --pyi_out=. --grpc_python_out=. services/common/pb/ocr.proto
"$python" -m grpc_tools.protoc -Iprotos --include_source_info --descriptor_set_out=/dev/stdout ocr/v1/ocr.proto |
    "$python" -m protos.schemas protos/schemas
