"""Where what is controlled is: control sockets of programs that serve, and listening there; boards of this machine."""
