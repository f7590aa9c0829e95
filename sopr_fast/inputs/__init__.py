"""The door: whatever people have becomes policies, logs and returns here, once."""
