"""What part of an epoch a rank or a worker has."""
