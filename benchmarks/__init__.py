"""Time and memory, side by side with peers. Never run by the tests."""
