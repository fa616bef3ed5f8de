"""Control sockets of programs that serve: where they are, and listening there."""
