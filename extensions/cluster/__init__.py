"""Workers on the other nodes of a Ray cluster."""
