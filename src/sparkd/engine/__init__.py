"""The engine's own words: its log, taken apart, understood and forwarded."""
