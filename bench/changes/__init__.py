"""The parts of bench.writesets: what a transaction has changed, captured, extracted, compacted and applied."""
