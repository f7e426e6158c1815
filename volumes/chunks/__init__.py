"""Arrays stored in chunks: which are needed, how they are decoded, which are kept in memory."""
