"""Lower bound of time: decode every column of the file into memory once, batch by batch.

python scan.py TABLE OUT
"""

import sys

import pyarrow.parquet as pq

rows = sum(len(batch) for batch in pq.ParquetFile(sys.argv[1]).iter_batches(batch_size=65_536))
print(rows)
