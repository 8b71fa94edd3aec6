"""Tickets: what they are, how they move, and where they come from."""
