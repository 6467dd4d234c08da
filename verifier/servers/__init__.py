"""One file an engine behind one protocol; finding out which engine a server is; starting servers."""
