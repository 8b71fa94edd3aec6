"""The daemon: claims tickets, runs a Claude session for each, and survives being killed."""
