"""A gRPC server without input and output: HTTP/2 connections, and the calls on them."""
