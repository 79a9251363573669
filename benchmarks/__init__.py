"""Everything that produces evidence: studies, speed, figures. Run it with `python -m benchmarks NAME`."""
