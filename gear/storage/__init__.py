"""Manage: where the bytes of a trajectory live, and who may touch them."""
