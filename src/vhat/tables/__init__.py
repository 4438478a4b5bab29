"""Tables: checks, kinds of columns, names of rows, and files that are read and written."""
