"""Arrays in memory that both processes map: the host's memory, and a GPU's."""
