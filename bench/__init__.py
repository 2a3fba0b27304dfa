"""What is measured; `./run bench NAME` runs one (see README.md)."""
