"""Clients of both APIs, as small as they can be."""
