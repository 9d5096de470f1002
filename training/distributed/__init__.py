"""Process group, layout of parameters over ranks, and numeric modes."""
