"""Other loaders, each measured by a script of its own in a virtual environment of its own."""
