"""Control sockets of P4SGD's processes: addresses, client and server."""
