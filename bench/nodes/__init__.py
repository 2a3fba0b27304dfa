"""App servers as processes, for bench/coordinators.py."""
