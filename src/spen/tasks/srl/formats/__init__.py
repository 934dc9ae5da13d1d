"""File formats of parsed and labelled sentences."""
