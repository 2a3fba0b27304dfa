"""A book store: the schema, population and interactions of TPC-W (retired), written anew from its specification.

For bench/tpcw.py. Results are "TPC-W-derived": no run of it is an audited run.
"""
