"""Faults: everything that can die, hang or be cut off does, and an independent auditor looks; see README.md."""
