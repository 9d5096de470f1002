"""Pure data functions: source, split, checks, statistics, arrays. Its import loads no torch."""
