"""What demo, bench and faults share: a book store, and plain two-phase commit.

The book store is the schema, population and Buy Confirm of TPC-W (retired), written anew from its specification.
Results on it are "TPC-W-derived": no run is an audited run.
"""
