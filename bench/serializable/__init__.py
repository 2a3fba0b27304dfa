"""What bench/ssi.py measures: serializable snapshot isolation as its paper has, and of families."""
