"""Pure data functions: source, split, checks, statistics, arrays. Importing it loads no torch."""
