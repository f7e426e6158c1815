"""Worker processes: how they are started, given work, watched and replaced."""
