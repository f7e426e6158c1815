"""One backend a format, and the headers they read."""
