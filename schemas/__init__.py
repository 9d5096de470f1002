"""What the layers say to each other: the declaration, table schemas, records and errors."""
