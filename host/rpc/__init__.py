"""Control sockets of P4SGD's programs: addresses, messages, clients and servers."""
