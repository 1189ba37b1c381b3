"""The command line: thin, every command a call of the library."""
