"""Files of records: runs and goldens."""
