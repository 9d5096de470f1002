"""Types that the layers exchange: the declaration, table schemas, records and errors."""
