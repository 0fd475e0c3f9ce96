"""Everything between the pure engine and the outside: sockets, gRPC, lease, runner."""
