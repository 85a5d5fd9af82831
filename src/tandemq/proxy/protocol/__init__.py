"""Messages of gRPC clients; the modules ending in _pb2 are generated from the .proto files (`tools/protocol.sh`)."""
