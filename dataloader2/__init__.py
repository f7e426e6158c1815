"""DataLoader2: compile the graph, iterate, state."""
