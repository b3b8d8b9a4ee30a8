"""Process groups: one of them, which ones there are, and how a new one forms."""
