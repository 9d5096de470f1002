"""Words of a rank that is not the one that failed; the launcher reads them without torch."""

from __future__ import annotations

LOST_PEER = "lost its connection to another rank"
