"""Parts of the shift league: splits of a table, one file a family of methods, and what is read off their intervals."""
