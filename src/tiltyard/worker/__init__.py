"""One engine behind a socket: load, warm, stream, cancel."""
