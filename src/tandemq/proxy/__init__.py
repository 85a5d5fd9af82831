"""The proxy for gRPC clients of RocketMQ 5: their service, on brokers that speak the remoting protocol.

gRPC client ─► grpc/ ─► service ─► sending, receiving, handles, transactions ─► client/core ─► brokers
"""
