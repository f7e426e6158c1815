"""Files and archives: list, open, unpack, check, save and keep them; read lines, rows, JSON."""
