"""`fleet up`: a whole fleet on one machine, in one command."""
