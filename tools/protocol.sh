#!/bin/sh
# Generate the messages of the gRPC services from src/tandemq/proxy/protocol/*.proto: modules and their types.
set -eu
cd "$(dirname "$0")/../src"
"${PYTHON:-../.venv/bin/python}" -m grpc_tools.protoc -I . --python_out="${1:-.}" --pyi_out="${1:-.}" tandemq/proxy/protocol/*.proto
