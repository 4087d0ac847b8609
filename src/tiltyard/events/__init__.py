"""What happened: schema, append-only log, content vault, projections."""
