"""Reports: what a run file says, drawn for people and for machines. One file a format; `data` makes what they draw."""
