"""A step that was not finite, made again."""
