"""HTTP/2 as gRPC uses it: header compression, frames."""
