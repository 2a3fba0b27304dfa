"""What `bench.replicated` measures: a part each."""
