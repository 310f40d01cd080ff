"""`gear-server`: a supervisor that answers discovery, and the shard process that owns the tables."""
