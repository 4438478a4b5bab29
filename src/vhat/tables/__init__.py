"""Tables: what their rows must satisfy, what the rows are called, and how files are read and written."""
