"""What bench/tpcw.py measures, on the book store of workload/."""
