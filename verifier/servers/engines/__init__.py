"""One adapter for each engine, behind `verifier.servers.protocol`."""
